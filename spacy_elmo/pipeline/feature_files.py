"""Records of layers on disk: append-only files that several processes share, where nothing broken is taken for good.

A process appends to files of its own and reads those of all. Each record has its checksums: of one that a killed
process or a full disk left half written, or whose bytes have changed since, nothing is used.
"""

from __future__ import annotations

import os
import secrets
import struct
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import BufferedReader, RawIOBase
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ElmoWarning, Errors, PipelineError, Warnings

SUFFIX = ".features"

MAX_FILE_BYTES = 2**28
"""A file that has grown to this is left and the next one begun: room is made by whole files."""

FORMAT = b"ELF1"
"""Stands before each record; another number means other bytes, or other numbers for the same words."""

# Format, key, words, layers, width, columns left out, bytes a number, checksum of the numbers; then that of all these.
_HEADER = struct.Struct("<4s32s6I")
_CHECKSUM = struct.Struct("<I")
_HEADER_BYTES = _HEADER.size + _CHECKSUM.size

_TOUCH_SECONDS = 60.0

Floats = NDArray[Any]


class Record(NamedTuple):
    """Layers of a sequence, as they are kept.

    values (ndarray): float32 or float16, (words, layers · width − left_out).
    n_layers (int): Layers.
    width (int): Width of a layer.
    left_out (int): Columns of layer 0 that are left out, as they are the ones after them again: width / 2, or 0.
    """

    values: Floats
    n_layers: int
    width: int
    left_out: int


def pack(layers: Floats, half: bool = False) -> Record:
    """Layers in their smallest form. Layer 0 of a biLM over words is one vector twice and kept once.

    layers (ndarray): float32, (words, layers, width), numpy.
    half (bool): Round to float16, unless a value is beyond its range.
    RETURNS (Record): The record; it owns its memory.
    """
    words, n_layers, width = layers.shape
    middle = width // 2
    bits = layers[:, 0].view(np.uint32)
    left_out = middle if np.array_equal(bits[:, :middle], bits[:, middle:]) else 0
    values = layers.reshape(words, n_layers * width)[:, left_out:].copy()
    return Record(_halved(values) if half else values, n_layers, width, left_out)


def unpack(record: Record, layers: Floats) -> None:
    """The inverse of `pack`.

    record (Record): The record.
    layers (ndarray): float32, (words, layers, width), contiguous: where to.
    """
    values, left_out = record.values, record.left_out
    flat = layers.reshape(len(values), record.n_layers * record.width)
    if values.dtype == np.float32:
        flat[:, left_out:] = values
    else:
        import torch

        # Nine times as fast as numpy.
        torch.from_numpy(flat[:, left_out:]).copy_(torch.from_numpy(values))
    flat[:, :left_out] = flat[:, left_out : 2 * left_out]


def _halved(values: Floats) -> Floats:
    import torch

    half = torch.from_numpy(values).half()
    return half.numpy() if bool(torch.isfinite(half).all()) else values


class _Found(NamedTuple):
    """A file of the directory."""

    last_use: float
    name: str
    n_bytes: int


class _Place(NamedTuple):
    """Where a record is: its file, and its first byte there."""

    name: str
    start: int


class FeatureFiles:
    """Records in the files of a directory, found by their keys. Not for several threads at once.

    directory (Path): The directory; made if need be.
    max_bytes (int | None): Bound of the directory. For room, files are deleted that nobody has used since this object
        was made, the longest unused first; beyond that nothing more is written.
    """

    def __init__(self, directory: Path, max_bytes: int | None = None) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self._places: dict[bytes, _Place] = {}
        self._seen: dict[str, int] = {}  # How far each file has been looked through.
        self._touched: dict[str, float] = {}
        self._began = time.time()
        self._own: tuple[int, str] | None = None  # The process, and the file that it writes.
        self._is_closed = False

    def read(self, keys: Sequence[bytes]) -> dict[bytes, Record]:
        """Find records.

        keys (Sequence[bytes]): 32 bytes each.
        RETURNS (dict[bytes, Record]): Those that are there and whole.
        RAISES (PipelineError): E340 if the directory cannot be made or read.
        """
        if any(key not in self._places for key in keys):
            self._look_for_more()
        places = sorted((self._places[key], key) for key in keys if key in self._places)
        records: dict[bytes, Record] = {}
        for name, wanted in groupby(places, key=lambda place: place[0].name):
            with suppress(OSError), open(self.directory / name, "rb") as file:
                for place, key in wanted:
                    record = _read_record(file, place.start, key)
                    if record is not None:
                        records[key] = record
                self._touch(name)
        for _, key in places:
            if key not in records:
                # Broken or deleted: it will be written anew.
                del self._places[key]
        return records

    def write(self, records: dict[bytes, Record]) -> None:
        """Append those that are not there yet. When the disk takes no more, W340 says so, once, and that is all: it is
        no reason to end a training run.

        records (dict[bytes, Record]): Records by their keys.
        """
        fresh = {key: _to_bytes(key, record) for key, record in records.items() if key not in self._places}
        data = b"".join(fresh.values())
        if self._is_closed or not data or not self._make_room(len(data)):
            return
        name = self._own_file()
        try:
            start = _append(self.directory / name, data)
        except OSError as error:
            self._is_closed = True
            warnings.warn(Warnings.W340.format(directory=self.directory, detail=error), ElmoWarning, stacklevel=4)
            return
        for key, record in fresh.items():
            self._places[key] = _Place(name, start)
            start += len(record)
        self._seen[name] = start

    def _look_for_more(self) -> None:
        """Take note of what has been written. Of two records with one key the later is taken: it was written because
        the earlier one could not be read."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            found = self._list_files()
        except OSError as error:
            raise PipelineError(Errors.E340.format(directory=self.directory, detail=error)) from error
        for _, name, size in sorted(found, key=lambda file: file.name):
            seen = self._seen.get(name, 0)
            if seen < size:
                with suppress(OSError), open(self.directory / name, "rb", buffering=0) as file:
                    for key, start, end in _scan(file, seen, size):
                        self._places[key] = _Place(name, start)
                        self._seen[name] = end

    def _list_files(self) -> list[_Found]:
        found = []
        with os.scandir(self.directory) as entries:
            for entry in entries:
                # Another process may delete it at any time.
                with suppress(FileNotFoundError):
                    if entry.name.endswith(SUFFIX):
                        status = entry.stat()
                        found.append(_Found(status.st_mtime, entry.name, status.st_size))
        return found

    def _touch(self, name: str) -> None:
        """Let others know that the file is in use."""
        now = time.monotonic()
        if now - self._touched.get(name, -_TOUCH_SECONDS) >= _TOUCH_SECONDS:
            self._touched[name] = now
            with suppress(OSError):
                os.utime(self.directory / name)

    def _make_room(self, size: int) -> bool:
        if self.max_bytes is None:
            return True
        found: list[_Found] = []
        with suppress(OSError):
            found = sorted(self._list_files())
        total = size + sum(file.n_bytes for file in found)
        for file in found:
            if total <= self.max_bytes or file.last_use >= self._began:
                break
            with suppress(OSError):
                (self.directory / file.name).unlink(missing_ok=True)
                total -= file.n_bytes
        return total <= self.max_bytes

    def _own_file(self) -> str:
        """Each process has a file of its own, a child of a fork too, and begins another when that one is large."""
        process = os.getpid()
        largest = MAX_FILE_BYTES if self.max_bytes is None else min(MAX_FILE_BYTES, self.max_bytes // 8)
        if self._own is None or self._own[0] != process or self._seen.get(self._own[1], 0) >= largest:
            # In the order of names they are in the order of time.
            self._own = (process, f"{time.time_ns():020}-{process}-{secrets.token_hex(4)}{SUFFIX}")
        return self._own[1]


def _append(path: Path, data: bytes) -> int:
    """Write all of it at the end of a file, or nothing.

    RETURNS (int): Where it starts.
    """
    with open(path, "ab", buffering=0) as file:
        start = file.tell()
        written = 0
        try:
            while written < len(data):
                written += file.write(memoryview(data)[written:])
        except BaseException:
            # What is appended later would be beyond a torn record, where nobody finds it.
            with suppress(OSError):
                file.truncate(start)
            raise
    return start


def _scan(file: RawIOBase, start: int, size: int) -> Iterator[tuple[bytes, int, int]]:
    """The records of a file, as key, first byte and end, up to one that is torn or, so far, only half written."""
    while True:
        file.seek(start)
        header = _read_header(file.read(_HEADER_BYTES) or b"")
        if header is None or start + _HEADER_BYTES + header.n_bytes > size:
            return
        end = start + _HEADER_BYTES + header.n_bytes
        yield header.key, start, end
        start = end


class _Header(NamedTuple):
    format: bytes
    key: bytes
    words: int
    n_layers: int
    width: int
    left_out: int
    itemsize: int
    checksum: int

    @property
    def columns(self) -> int:
        return self.n_layers * self.width - self.left_out

    @property
    def n_bytes(self) -> int:
        return self.words * self.columns * self.itemsize


def _read_header(data: bytes) -> _Header | None:
    if len(data) < _HEADER_BYTES or _CHECKSUM.unpack_from(data, _HEADER.size) != (zlib.crc32(data[: _HEADER.size]),):
        return None
    header = _Header(*_HEADER.unpack_from(data))
    return header if header.format == FORMAT and header.itemsize in (2, 4) else None


def _read_record(file: BufferedReader, start: int, key: bytes) -> Record | None:
    """RETURNS (Record | None): None if it is not this key's or not as it was written."""
    file.seek(start)
    header = _read_header(file.read(_HEADER_BYTES))
    if header is None or header.key != key:
        return None
    data = bytearray(header.n_bytes)
    if file.readinto(data) != len(data) or zlib.crc32(data) != header.checksum:
        return None
    values = np.frombuffer(data, dtype=f"f{header.itemsize}").reshape(header.words, header.columns)
    return Record(values, header.n_layers, header.width, header.left_out)


def _to_bytes(key: bytes, record: Record) -> bytes:
    values = record.values
    sizes = (len(values), record.n_layers, record.width, record.left_out, values.itemsize)
    data = values.tobytes()
    header = _HEADER.pack(FORMAT, key, *sizes, zlib.crc32(data))
    return header + _CHECKSUM.pack(zlib.crc32(header)) + data
