"""bilm-tf's vocabulary files: a word a line, in the order of the rows of a table of words or of a softmax."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

from ..errors import Errors, WeightsError, detail_of
from ..lm.config import MAX_ENTRIES

VOCABULARY_FILE = "vocab.txt"

# A line that bilm-tf passes over.
PASSED_OVER = "!!!MAXTERMID"
_MOST_BYTES = 2**28
# Words get a quarter as small; a file of empty lines gets a thousand times smaller.
_MOST_RATIO = 50
_SMALL = 2**24


def read_words(path: str | Path) -> list[str]:
    """Read a vocabulary as bilm-tf does: spaces around words do not count, empty lines do.

    path (str | Path): UTF-8, compressed by gzip if its name ends in `.gz`.
    RETURNS (list[str]): The words.
    RAISES (WeightsError): E120 if the file cannot be read, E140 if it is no such file.
    """
    path = Path(path)
    try:
        most = min(_MOST_BYTES, max(_SMALL, _MOST_RATIO * path.stat().st_size))
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise ValueError(f"it has more than {most:,} bytes")
        if max(content.count(b"\n"), content.count(b"\r")) > MAX_ENTRIES:
            raise ValueError(f"it has more than {MAX_ENTRIES:,} lines")
        text = content.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
        raise WeightsError(Errors.E140.format(path=path, problem=detail_of(error))) from error
    except OSError as error:
        raise WeightsError(Errors.E120.format(path=path, problem=detail_of(error))) from error
    lines = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n") if text else []
    return [word for word in map(str.strip, lines) if word != PASSED_OVER]


def vocabulary_bytes(words: Sequence[str]) -> bytes:
    """The inverse of `read_words`.

    RAISES (WeightsError): E141 for a word that would not be read back as it is.
    """
    lines = []
    for word in words:
        try:
            lines.append(word.encode("utf-8") + b"\n")
        except UnicodeEncodeError as error:
            raise WeightsError(Errors.E141.format(word=word)) from error
        if word != word.strip() or "\n" in word or "\r" in word or word == PASSED_OVER:
            raise WeightsError(Errors.E141.format(word=word))
    return b"".join(lines)
