"""What the user sees where a command ends badly: one message, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from ..errors import ElmoError


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Print an error of the catalogue to stderr and end the command with exit code 1."""
    try:
        yield
    except ElmoError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
