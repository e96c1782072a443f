"""What the user sees where a command ends badly: one message, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten

import typer

from ..errors import ElmoError
from ..pretraining.interrupts import termination_as_interrupt

INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM, as shells have it."""

_DETAIL_CHARACTERS = 300


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


def detail_of(error: BaseException) -> str:
    """What an error of another library says, as a part of a sentence of ours.

    error (BaseException): The error.
    RETURNS (str): One line, not too long, without a full stop at its end.
    """
    text = shorten(str(error), _DETAIL_CHARACTERS, placeholder=" …").rstrip(". ")
    # A KeyError says no more than the key, and some say nothing.
    return text if " " in text else f"{type(error).__name__}: {text}".rstrip(": ")
