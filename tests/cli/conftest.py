"""The command line in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from spacy.cli._util import app
from typer.testing import CliRunner, Result

import spacy_elmo.cli  # noqa: F401

Command = Callable[..., Result]


@pytest.fixture
def spacy_command() -> Command:
    """A function that runs `python -m spacy …` in this process."""

    def run(*arguments: object, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)

    return run
