"""What messages quote of files that may be hostile."""

from __future__ import annotations

import pytest

from spacy_elmo.errors import detail_of, one_line, shown


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("  several\n\tlines. ", "several lines."),
        ("\x1b[31mred \ud800", "\N{REPLACEMENT CHARACTER}[31mred \N{REPLACEMENT CHARACTER}"),
        ("naïve 語", "naïve 語"),
        ("word " * 1000, "word " * 59 + "…"),
    ],
)
def test_one_line(text: str, line: str) -> None:
    assert one_line(text) == line


def test_shown_values_are_not_too_long() -> None:
    assert shown({"a": "\x1b"}) == "{'a': '\\x1b'}"
    assert len(shown("x" * 10_000)) == len(shown(list(range(10_000)))) < 400


def test_errors_of_the_system_say_no_more_than_what_went_wrong() -> None:
    assert detail_of(OSError(28, "No space left on device", "/secret/path")) == "No space left on device"
