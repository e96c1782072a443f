"""What a command says when it ends badly, and its exit code."""

from __future__ import annotations

import signal

import pytest
import typer

from spacy_elmo.cli.messages import errors_as_messages
from spacy_elmo.errors import ElmoError, detail_of


@pytest.mark.parametrize(
    "error, detail",
    [
        (ValueError("It is broken."), "It is broken"),
        (ValueError("It ends in dots ..."), "It ends in dots"),
        (ValueError("\n\nSeveral\n  lines.\n"), "Several lines"),
        (KeyError("nlp"), "KeyError: 'nlp'"),
        (RuntimeError(), "RuntimeError"),
        (ValueError("word " * 1000), "word " * 59 + "…"),
    ],
)
def test_detail_is_a_part_of_a_sentence(error: Exception, detail: str) -> None:
    assert detail_of(error) == detail


def test_error_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, errors_as_messages():
        raise ElmoError("what happened")
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == "what happened\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_has_an_exit_code_of_its_own(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, errors_as_messages():
        signal.raise_signal(number)
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "Interrupted.\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
