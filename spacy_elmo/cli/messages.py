"""What the user sees where a command ends badly: one message, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from ..errors import ElmoError
from ..pretraining.interrupts import INTERRUPTED, termination_as_interrupt


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Print an error of the catalogue to stderr and end the command with exit code 1; after Ctrl-C or SIGTERM end it
    with 130, once what is being written has been cleared away."""
    try:
        with termination_as_interrupt():
            yield
    except ElmoError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
