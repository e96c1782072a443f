"""Read TensorFlow's checkpoint format ("tensor bundle", what Saver V2 writes) without TensorFlow.

prefix.index                    a sorted table (the SSTable of LevelDB): name of a tensor -> where its bytes lie
prefix.data-00000-of-00002      the bytes of tensors, one after another, little endian

The table: blocks of prefix-compressed, sorted keys; a block of handles (offset, size) to these; a footer with the handle
of that block. Values are protocol buffers. Blocks and tensors carry masked CRC-32C sums, all of which are verified.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors, WeightsError, detail_of
from .crc32c import crc32c

_MAGIC = 0xDB4775248B80FB57
_FOOTER_SIZE = 48
_TRAILER_SIZE = 5  # of a block: the kind of compression, and the sum of contents and kind
_UNCOMPRESSED, _SNAPPY = 0, 1

# The index of a biLM has some 15 kB. What a file can make us hold is bounded by these, whatever it says.
_MOST_INDEX_BYTES = 2**22
_MOST_TABLE_BYTES = 2**24
_MOST_DIMENSIONS = 32
_MOST_SHARDS = 1000

# TensorFlow's numbers of types (types.proto).
_FLOATS: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 2: np.dtype("<f8"), 19: np.dtype("<f2")}


class _Damage(ValueError):
    """What is wrong with the bytes of an index."""


class BundleEntry(NamedTuple):
    """Where a tensor lies.

    type (int): TensorFlow's number of its type. shape (tuple): Its sizes. shard (int): Number of its data file.
    offset, size (int): Its bytes there. checksum (int): Their masked CRC-32C. is_sliced (bool): Whether it is kept in
        parts under other names.
    """

    type: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    is_sliced: bool


class TensorBundle:
    """The tensors of a checkpoint. Reads the index; data is read tensor by tensor.

    prefix (Path): Path of the checkpoint without `.index`.
    RAISES (WeightsError): E138 if there is no index or it cannot be read, E139 if it is damaged.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.path = prefix.with_name(prefix.name + ".index")
        try:
            with open(self.path, "rb") as file:
                data = file.read(_MOST_INDEX_BYTES + 1)
        except OSError as error:
            raise WeightsError(Errors.E138.format(prefix=prefix, problem=detail_of(error))) from error
        try:
            table = _read_table(data)
            self.n_shards = _read_header(table.pop(b"", b""))
            self.entries = {key.decode("utf-8"): _read_entry(value) for key, value in table.items()}
        except ValueError as error:
            raise WeightsError(Errors.E139.format(path=self.path, problem=detail_of(error))) from error

    @property
    def size(self) -> int:
        """Bytes of all data files."""
        paths = [self._data_path(shard) for shard in range(self.n_shards)]
        return sum(path.stat().st_size for path in paths if path.is_file())

    def tensor(self, name: str) -> NDArray[Any]:
        """The values of a tensor, verified.

        name (str): One of `entries`.
        RETURNS (NDArray): Read-only floats of 16, 32 or 64 bits, mapped from the file: they take no memory of their own.
        RAISES (WeightsError): E130 if it is no plain tensor of floats; E138 if its data file cannot be read, E139 if that
            is damaged.
        """
        entry = self.entries[name]
        dtype = _FLOATS.get(entry.type)
        if dtype is None or entry.is_sliced:
            found = "a partitioned variable" if entry.is_sliced else f"of TensorFlow's type number {entry.type}"
            raise WeightsError(Errors.E130.format(path=self.prefix, name=name, found=found))
        path = self._data_path(entry.shard)
        needed = math.prod(entry.shape) * dtype.itemsize
        if entry.size != needed or entry.shard >= self.n_shards:
            problem = (
                f"'{name}' of shape {entry.shape} needs {needed} bytes, but has {entry.size} in shard {entry.shard}"
            )
            raise WeightsError(Errors.E139.format(path=self.path, problem=problem))
        data = _mapped(path, self.prefix)
        if entry.offset + entry.size > len(data):
            problem = f"it has {len(data)} bytes, but '{name}' ends at {entry.offset + entry.size}"
            raise WeightsError(Errors.E139.format(path=path, problem=problem))
        data = data[entry.offset : entry.offset + entry.size]
        if _masked(crc32c(data)) != entry.checksum:
            raise WeightsError(Errors.E139.format(path=path, problem=f"the sum of '{name}' does not match"))
        return np.frombuffer(data, dtype).reshape(entry.shape)

    def _data_path(self, shard: int) -> Path:
        return self.prefix.with_name(f"{self.prefix.name}.data-{shard:05d}-of-{self.n_shards:05d}")


def _mapped(path: Path, prefix: Path) -> NDArray[np.uint8]:
    try:
        if path.stat().st_size == 0:  # nothing to map
            return np.zeros(0, np.uint8)
        return np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise WeightsError(Errors.E138.format(prefix=prefix, problem=f"{path.name}: {detail_of(error)}")) from error


def _masked(checksum: int) -> int:
    """A sum as it is stored, so that sums of data that holds sums stay good."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


# The table.


def _read_table(data: bytes) -> dict[bytes, bytes]:
    if len(data) > _MOST_INDEX_BYTES:
        raise _Damage(f"it has more than {_MOST_INDEX_BYTES} bytes")
    footer = data[-_FOOTER_SIZE:]
    if len(footer) < _FOOTER_SIZE or int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise _Damage("it does not end as a table does")
    _, at = _read_handle(footer, 0)
    index, _ = _read_handle(footer, at)
    table: dict[bytes, bytes] = {}
    budget, blocks_end, last = _MOST_TABLE_BYTES, 0, None
    for _, handle in _block_entries(_block(data, *index)):
        (offset, size), _ = _read_handle(handle, 0)
        if offset < blocks_end:
            raise _Damage("its blocks overlap")
        blocks_end = offset + size
        for key, value in _block_entries(_block(data, offset, size)):
            budget -= len(key) + len(value)
            if budget < 0:
                raise _Damage(f"it holds more than {_MOST_TABLE_BYTES} bytes of names and values")
            if last is not None and key <= last:
                raise _Damage("its names are not in order")
            table[key] = value
            last = key
    return table


def _block(data: bytes, offset: int, size: int) -> bytes:
    end = offset + size
    if end + _TRAILER_SIZE > len(data):
        raise _Damage(f"a block from {offset} to {end} lies beyond its end")
    if _masked(crc32c(data[offset : end + 1])) != int.from_bytes(data[end + 1 : end + _TRAILER_SIZE], "little"):
        raise _Damage(f"the sum of the block at {offset} does not match")
    contents, compression = data[offset:end], data[end]
    if compression == _SNAPPY:
        return _unsnap(contents)
    if compression != _UNCOMPRESSED:
        raise _Damage(f"a block is compressed in the unknown way {compression}")
    return contents


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values. A key shares its first bytes with the key before; where it does not is listed at the end."""
    n_restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (n_restarts + 1)
    if len(block) < 4 or end < 0:
        raise _Damage("a block is too short")
    key, at = b"", 0
    while at < end:
        n_shared, at = _read_varint(block, at)
        n_own, at = _read_varint(block, at)
        n_value, at = _read_varint(block, at)
        value_at = at + n_own
        if n_shared > len(key) or value_at + n_value > end:
            raise _Damage("an entry runs over the end of its block")
        key = key[:n_shared] + block[at:value_at]
        at = value_at + n_value
        yield key, block[value_at:at]


def _read_handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = _read_varint(data, at)
    size, at = _read_varint(data, at)
    return (offset, size), at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """An integer, seven bits a byte, lowest first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise _Damage("an integer does not end")


def _unsnap(data: bytes) -> bytes:
    """Decompress: literal runs, and copies of what was written before."""
    length, at = _read_varint(data, 0)
    if length > _MOST_TABLE_BYTES:
        raise _Damage(f"a block says that it has {length} bytes")
    out = bytearray()
    while at < len(data):
        tag, kind = data[at] >> 2, data[at] & 3
        at += 1
        if kind == 0:
            n_more = max(0, tag - 59)
            size = 1 + (int.from_bytes(data[at : at + n_more], "little") if n_more else tag)
            at += n_more + size
            out += data[at - size : at]
            continue
        n_more = (0, 1, 2, 4)[kind]
        back = int.from_bytes(data[at : at + n_more], "little")
        size = 1 + tag
        if kind == 1:
            back, size = back + (tag >> 3 << 8), 4 + (tag & 7)
        at += n_more
        if not 0 < back <= len(out):
            raise _Damage("a compressed block copies from before its beginning")
        piece = out[-back : len(out) - back + size]
        out += (piece * (size // len(piece) + 1))[:size]
    if at != len(data) or len(out) != length:
        raise _Damage("a compressed block does not have the length that it says")
    return bytes(out)


# The values: protocol buffers.


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _read_varint(data, at)
            yield number, value
        elif kind in (1, 2, 5):
            size, at = _read_varint(data, at) if kind == 2 else (8 if kind == 1 else 4, at)
            if at + size > len(data):
                raise _Damage("a field runs over the end of its message")
            yield number, data[at : at + size] if kind == 2 else int.from_bytes(data[at : at + size], "little")
            at += size
        else:
            raise _Damage(f"a field is of the unknown kind {kind}")


def _message(data: bytes, **numbers: int) -> dict[str, list[Any]]:
    """The values of some fields by name; a field may be repeated, or absent."""
    names = {number: name for name, number in numbers.items()}
    values: dict[str, list[Any]] = {name: [] for name in numbers}
    for number, value in _fields(data):
        if number in names:
            values[names[number]].append(value)
    return values


def _number(values: list[Any]) -> int:
    """The last value given counts, as everywhere in protocol buffers; none is zero."""
    value = values[-1] if values else 0
    if not isinstance(value, int):
        raise _Damage("a field that should be a number is not")
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise _Damage("a field that should be a message is not")
    return value


def _read_header(data: bytes) -> int:
    """BundleHeaderProto: the number of data files."""
    header = _message(data, n_shards=1, endianness=2)
    n_shards = _number(header["n_shards"])
    if not 0 < n_shards <= _MOST_SHARDS:
        raise _Damage(f"it names {n_shards} data files")
    if _number(header["endianness"]) != 0:
        raise _Damage("its data is big endian, which is not read")
    return n_shards


def _read_entry(data: bytes) -> BundleEntry:
    """BundleEntryProto."""
    entry = _message(data, type=1, shape=2, shard=3, offset=4, size=5, checksum=6, slices=7)
    shape = []
    for message in entry["shape"]:
        for dimension in _message(_bytes(message), dimension=2)["dimension"]:
            shape.append(_number(_message(_bytes(dimension), size=1)["size"]))
    if len(shape) > _MOST_DIMENSIONS:
        raise _Damage(f"a tensor has {len(shape)} dimensions")
    numbers = {name: _number(entry[name]) for name in ("type", "shard", "offset", "size", "checksum")}
    return BundleEntry(shape=tuple(shape), is_sliced=bool(entry["slices"]), **numbers)
