"""Lines of text files, plain or compressed, in memory that is bounded whatever is in them.

`.txt`    a sentence a line, words separated by spaces
`.jsonl`  an object a line, with the words of a sentence under "tokens"; `.ndjson` is the same

Both are UTF-8, with or without a mark of the byte order, and may be compressed: `.gz`, `.zst`. Whitespace separates words in
both: a token with whitespace in it is several words, and one of nothing but whitespace is none.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO

from ..errors import CorpusError, Errors, detail_of
from ..weights.files import sha256_of

JSONL_SUFFIXES = (".jsonl", ".ndjson")
PACKED_SUFFIXES = (".gz", ".zst")
SUFFIXES = tuple(kind + packed for kind in (".txt", *JSONL_SUFFIXES) for packed in ("", *PACKED_SUFFIXES))

_LONGEST_LINE = 2**23
"""Bytes of a line that are held at a time; what is beyond is read as a further piece of it."""

_BUFFER = 2**17
# A zstd block of 4 bytes can unfold to 2**17: so many bytes at a time, to no more than 2**25.
_ZSTD_PIECE = 2**10
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Where NUL bytes stand so early, the whole file is no UTF-8 text.
_LOOKED_AT = 1000


class TextFile:
    """A text file, and how far it has been read.

    path (Path): The file. A name that ends in .jsonl or .ndjson, compressed or not, is one of JSON objects; any other one of
        lines.
    line (int): Number of the line that `pieces` gave last, from 1.
    continues (bool): Whether that was a further piece of a line of which it gave a piece before.
    line_bytes (int): Bytes of that line, as far as it was given.
    line_words (int): Its words, as far as who splits them has counted.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.line, self.continues = path, 0, False
        self.line_bytes, self.line_words = 0, 0
        self.is_json = path.name.removesuffix(".gz").removesuffix(".zst").lower().endswith(JSONL_SUFFIXES)

    def pieces(self) -> Iterator[bytes]:
        """Lines as they stand. Only `\\n` ends a line.

        YIELDS (bytes): A line with its end; one of very many bytes comes in pieces, cut at a space.
        RAISES (CorpusError): E201 if the file cannot be read or is cut off, E240 if what reads it is not installed, E241 if
            it is no text, E242 if it has a line of JSON that is too long.
        """
        ended = True
        try:
            with self._open() as file:
                for piece in self._whole_lines(file) if self.is_json else _bounded_lines(file):
                    self.line += ended
                    self.continues = not ended
                    self.line_bytes = len(piece) if ended else self.line_bytes + len(piece)
                    ended = piece.endswith(b"\n")
                    yield piece
        except (OSError, EOFError, zlib.error) as error:
            raise CorpusError(Errors.E201.format(path=self.path, line=self.line + ended, detail=error)) from error

    def text(self, piece: bytes) -> str:
        """RETURNS (str): The words of the piece that `pieces` gave last, separated by whitespace.

        RAISES (CorpusError): E202 if it is not UTF-8, E242 if it is no JSON object with tokens, E243 if that has a text only.
        """
        if not self.is_json:
            return self.decode(piece)
        if not piece.strip():
            return ""
        record = self.record(piece)
        tokens = record.get("tokens")
        if tokens is None and isinstance(record.get("text"), str):
            raise CorpusError(Errors.E243.format(path=self.path, line=self.line, quoted_path=quote(str(self.path))))
        if not isinstance(tokens, list):
            raise self.no_json('there is no list "tokens"')
        return self.join(tokens)

    def decode(self, piece: bytes) -> str:
        """RETURNS (str): Text of bytes.

        RAISES (CorpusError): E202 if they are not UTF-8.
        """
        try:
            return piece.decode("utf-8")
        except UnicodeDecodeError as error:
            detail = f"byte {error.object[error.start]:#04x}"
            raise CorpusError(Errors.E202.format(path=self.path, line=self.line, detail=detail)) from error

    def record(self, piece: bytes) -> dict[str, Any]:
        """RETURNS (dict): The object on a line of JSON.

        RAISES (CorpusError): E202 if it is not UTF-8, E242 if it is no JSON or no object.
        """
        try:
            record = json.loads(self.decode(piece))
        except CorpusError:
            raise
        except (ValueError, RecursionError) as error:  # a number of thousands of digits is no JSONDecodeError
            raise self.no_json(detail_of(error)) from error
        if not isinstance(record, dict):
            raise self.no_json(f"it is a {type(record).__name__}")
        return record

    def join(self, tokens: list[Any]) -> str:
        """RETURNS (str): Tokens of JSON, separated by spaces.

        RAISES (CorpusError): E242 if they are no strings, or such as no encoding of text can hold.
        """
        try:
            text = " ".join(tokens)
            if not text.isascii():
                text.encode("utf-8")  # JSON can spell half a character
        except (TypeError, UnicodeEncodeError) as error:
            raise self.no_json(detail_of(error)) from error
        return text

    def no_json(self, detail: str) -> CorpusError:
        """RETURNS (CorpusError): E242, for the line that was read last."""
        return CorpusError(Errors.E242.format(path=self.path, line=self.line, detail=detail))

    def _open(self) -> io.BufferedReader:
        file = _open_binary(self.path)
        try:
            head = file.peek(_LOOKED_AT)[:_LOOKED_AT]
            if b"\0" in head:
                raise CorpusError(Errors.E241.format(path=self.path))
            if head.startswith(_BYTE_ORDER_MARK):
                file.read(len(_BYTE_ORDER_MARK))
        except BaseException:
            file.close()
            raise
        return file

    def _whole_lines(self, file: BinaryIO) -> Iterator[bytes]:
        while line := file.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
                self.line += 1
                raise self.no_json(f"it is longer than {_LONGEST_LINE:,} bytes")
            yield line


class FileStates:
    """Notices that a file is no longer the one that was read before."""

    def __init__(self) -> None:
        self._stamps: dict[Path, tuple[int, int, int]] = {}
        self._checksums: dict[Path, str] = {}

    def check(self, path: Path, line: int = 0) -> None:
        """Compare a file with what it was when it was first checked: its size, when it was last written, its inode; where
        these differ and its checksum was taken, its contents.

        path (Path): The file.
        line (int): How far it has been read.
        RAISES (CorpusError): E201 if it is gone, E245 if it is another.
        """
        try:
            stamp = _stamp(path)
            if self._stamps.setdefault(path, stamp) == stamp:
                return
            # Some network file systems give a file another inode from time to time.
            if path in self._checksums and sha256_of(path) == self._checksums[path] and _stamp(path) == stamp:
                self._stamps[path] = stamp
                return
        except OSError as error:
            raise CorpusError(Errors.E201.format(path=path, line=line + 1, detail=error)) from error
        raise CorpusError(Errors.E245.format(path=path))

    def checksum(self, path: Path) -> str:
        """RETURNS (str): The sha256 of a file, in hexadecimal, that later checks hold it to.

        RAISES (CorpusError): E201 if it cannot be read, E245 if it is not what it was.
        """
        self.check(path)
        try:
            checksum = sha256_of(path)
        except OSError as error:
            raise CorpusError(Errors.E201.format(path=path, line=1, detail=error)) from error
        self.check(path)
        if self._checksums.setdefault(path, checksum) != checksum:
            raise CorpusError(Errors.E245.format(path=path))
        return checksum


def read_lines(path: Path) -> Iterator[str]:
    """YIELDS (str): Lines of a text file, their words separated by whitespace; very long ones in pieces.

    RAISES (CorpusError): As `TextFile.pieces` and `TextFile.text` do.
    """
    file = TextFile(path)
    for piece in file.pieces():
        yield file.text(piece)


def _stamp(path: Path) -> tuple[int, int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns, state.st_ino


def _open_binary(path: Path) -> io.BufferedReader:
    if path.name.endswith(".gz"):
        return io.BufferedReader(_GzipFile(path), _BUFFER)
    if path.name.endswith(".zst"):
        return io.BufferedReader(_ZstdFile(path), _BUFFER)
    return io.BufferedReader(open(path, "rb", buffering=0), _BUFFER)


class _GzipFile(gzip.GzipFile):
    """Gives what there is before it says that a file is cut off."""

    def readinto(self, buffer: Any) -> int:
        return self.readinto1(buffer)


class _ZstdFile(io.RawIOBase):
    """What one or several zstd frames hold. The readers of `zstandard` take a frame that is cut off for whole, or unfold
    all that they are given at once."""

    def __init__(self, path: Path) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise CorpusError(Errors.E240.format(path=path)) from error
        self._broken = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame: Any = None
        self._unfolded = memoryview(b"")
        self._file = open(path, "rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._unfolded:
            packed = self._file.read(_ZSTD_PIECE)
            if not packed:
                if self._frame is not None:
                    raise EOFError("it ends in the middle of a frame")
                return 0
            self._unfolded = memoryview(self._unfold(packed))
        size = min(len(buffer), len(self._unfolded))
        buffer[:size] = self._unfolded[:size]
        self._unfolded = self._unfolded[size:]
        return size

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def _unfold(self, packed: bytes) -> bytes:
        unfolded = []
        try:
            while packed:
                self._frame = self._frame or self._decompressor.decompressobj()
                unfolded.append(self._frame.decompress(packed))
                packed = self._frame.unused_data
                if self._frame.eof:
                    self._frame = None
        except self._broken as error:
            raise OSError(detail_of(error)) from error
        return b"".join(unfolded)


def _bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    rest = b""
    while read := file.readline(_LONGEST_LINE):
        raw, rest = rest + read, b""
        if len(read) == _LONGEST_LINE and not raw.endswith(b"\n"):
            cut = raw.rfind(b" ") + 1 or _before_last_character(raw)
            raw, rest = raw[:cut], raw[cut:]
        yield raw
    if rest:
        yield rest


def _before_last_character(raw: bytes) -> int:
    """A character of UTF-8 has at most four bytes, of which all but the first begin with the bits 10."""
    starts = (len(raw) - back for back in range(1, 5) if raw[-back] & 0xC0 != 0x80)
    return next(starts, len(raw))
