"""Texts and sentences from a file or standard input, one a line, as they stand or as JSON objects."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from ..errors import CorpusError, Errors, detail_of
from ..pretraining.text_files import JSONL_SUFFIXES, PACKED_SUFFIXES, TextFile

STANDARD_INPUT = Path("-")


class TextLine(NamedTuple):
    """A text and where it comes from.

    number (int): Its line, counted from 1.
    text (str): The text, perhaps empty.
    size (int): Bytes of the line in the file.
    """

    number: int
    text: str
    size: int


def read_texts(path: Path, jsonl: bool | None = None) -> Iterator[TextLine]:
    """Read texts one by one. Only a newline, or a carriage return and a newline, end a line.

    path (Path): A file, or "-" for standard input.
    jsonl (bool | None): Whether each line is a JSON object with a "text". Default: by the suffix of the file.
    YIELDS (TextLine): Each line, empty ones too.
    RAISES (CorpusError): E400 if the file cannot be read, E401 if a line is not UTF-8, E402 if it is no such JSON.
    """
    jsonl = path.suffix.lower() in JSONL_SUFFIXES if jsonl is None else jsonl
    try:
        with nullcontext(sys.stdin.buffer) if path == STANDARD_INPUT else open(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                line = _decode(raw, path, number)
                yield TextLine(number, _text_of(line, path, number) if jsonl else line, len(raw))
    except OSError as error:
        raise CorpusError(Errors.E400.format(path=path, detail=error.strerror or detail_of(error))) from error


def read_sentences(path: Path) -> Iterator[TextLine]:
    """Read sentences whose words are split, one by one: what `pretrain` reads, and standard input.

    path (Path): A file of text or of JSON objects with "tokens", by its suffix, which may be compressed; "-" for standard
        input, which is text.
    YIELDS (TextLine): The words of each line, separated by whitespace; empty ones too.
    RAISES (CorpusError): E400, E401 as `read_texts`; of files that are compressed or JSON E201, E202, E240–E243 as `TextFile`.
    """
    file = TextFile(path)
    if not file.is_json and path.suffix not in PACKED_SUFFIXES:
        yield from read_texts(path, jsonl=False)
        return
    for piece in file.pieces():
        yield TextLine(file.line, file.text(piece), len(piece))


def _decode(raw: bytes, path: Path, number: int) -> str:
    try:
        line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        detail = f"byte {error.object[error.start]:#04x}"
        raise CorpusError(Errors.E401.format(path=path, line=number, detail=detail)) from error
    return line.removesuffix("\n").removesuffix("\r")


def _text_of(line: str, path: Path, number: int) -> str:
    if not line.strip():
        return ""
    try:
        record = json.loads(line)
        problem = None if isinstance(record, dict) and isinstance(record.get("text"), str) else "it has none"
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is no JSONDecodeError
        problem = detail_of(error)
    if problem is None:
        text: str = record["text"]
        if text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text):
            return text
        # JSON can spell half a character; no encoding of text can hold it.
        problem = "the text has a lone surrogate"
    raise CorpusError(Errors.E402.format(path=path, line=number, detail=problem))
