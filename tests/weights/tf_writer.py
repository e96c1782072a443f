"""A writer of TensorFlow's checkpoint format, as plain as it can be, and bilm-tf's models in it.

It shares nothing with the reader. What it writes was compared once with what TensorFlow 2.21 reads and writes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

FLOAT, DOUBLE, INT64, HALF = 1, 2, 9, 19
TYPES = {"float32": FLOAT, "float64": DOUBLE, "int64": INT64, "float16": HALF}


# Numbers and sums.


def varint(value: int) -> bytes:
    octets = []
    while value >= 128:
        octets.append(value % 128 + 128)
        value //= 128
    return bytes([*octets, value])


def _eight_bits(state: int) -> int:
    for _ in range(8):
        state = state // 2 ^ (0x82F63B78 if state % 2 else 0)
    return state


EIGHT_BITS = [_eight_bits(octet) for octet in range(256)]


def crc32c(data: bytes) -> int:
    """Byte by byte: the definition."""
    state = 0xFFFFFFFF
    for octet in data:
        state = state >> 8 ^ EIGHT_BITS[(state ^ octet) & 0xFF]
    return state ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Rotated right by 15 bits, plus a constant."""
    value = crc32c(data)
    return ((value >> 15) + (value << 17) % 2**32 + 0xA282EAD8) % 2**32


# Protocol buffers.


def number_field(number: int, value: int) -> bytes:
    return varint(number * 8) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    return varint(number * 8 + 2) + varint(len(value)) + value


def header(n_shards: int, endianness: int = 0) -> bytes:
    version = number_field(1, 1)
    return number_field(1, n_shards) + number_field(2, endianness) + bytes_field(3, version)


def entry(type: int, shape: tuple[int, ...], shard: int, offset: int, size: int, checksum: int) -> bytes:
    sizes = b"".join(bytes_field(2, number_field(1, size)) for size in shape)
    numbers = number_field(3, shard) + number_field(4, offset) + number_field(5, size)
    return number_field(1, type) + bytes_field(2, sizes) + numbers + varint(6 * 8 + 5) + struct.pack("<I", checksum)


# The table.


def block(entries: list[tuple[bytes, bytes]], restart_every: int = 4) -> bytes:
    contents, restarts, last = b"", [], b""
    for i, (key, value) in enumerate(entries):
        shared = 0
        if i % restart_every == 0:
            restarts.append(len(contents))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        contents += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    return contents + struct.pack(f"<{len(restarts)}I", *restarts) + struct.pack("<I", len(restarts))


def snappy(data: bytes) -> bytes:
    """Literal runs, and copies of eight bytes that came before, of each of the three kinds in turn."""
    out, at, literal, kind = varint(len(data)), 0, b"", 1
    while at < len(data):
        piece = data[at : at + 8]
        back = at - data.rfind(piece, 0, at + 7)  # it may overlap what it copies
        if len(piece) == 8 and back <= (min(at, 2047) if kind == 1 else at):
            out += snappy_literal(literal) + snappy_copy(kind, back)
            at, literal, kind = at + 8, b"", kind % 3 + 1
        else:
            at, literal = at + 1, literal + piece[:1]
    return out + snappy_literal(literal)


def snappy_literal(run: bytes) -> bytes:
    n = len(run) - 1
    if n < 60:
        return bytes([n * 4]) + run if run else b""
    size = (n.bit_length() + 7) // 8
    return bytes([(59 + size) * 4]) + n.to_bytes(size, "little") + run


def snappy_copy(kind: int, back: int) -> bytes:
    if kind == 1:
        return bytes([back // 256 * 32 + (8 - 4) * 4 + 1, back % 256])
    return bytes([(8 - 1) * 4 + kind]) + back.to_bytes(2 if kind == 2 else 4, "little")


def table(entries: Mapping[bytes, bytes], per_block: int = 5, compress: bool = False) -> bytes:
    file, handles = b"", []

    def add(contents: bytes) -> bytes:
        nonlocal file
        contents = snappy(contents) if compress else contents
        offset = len(file)
        file += contents + bytes([compress])
        file += struct.pack("<I", masked_crc32c(contents + bytes([compress])))
        return varint(offset) + varint(len(contents))

    items = sorted(entries.items())
    for start in range(0, len(items), per_block):
        group = items[start : start + per_block]
        handles.append((group[-1][0], add(block(group))))
    meta, index = add(block([])), add(block(handles, restart_every=1))
    return file + (meta + index).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


# A checkpoint.


def write_bundle(
    prefix: Path, tensors: Mapping[str, np.ndarray], n_shards: int = 1, compress: bool = False
) -> dict[bytes, bytes]:
    """Write tensors, the k-th into shard k modulo `n_shards`. RETURNS (dict): The entries of the index."""
    shards = [b"" for _ in range(n_shards)]
    entries = {b"": header(n_shards)}
    for k, (name, values) in enumerate(sorted(tensors.items())):
        data, shard = values.astype(values.dtype.newbyteorder("<")).tobytes(), k % n_shards
        place = (shard, len(shards[shard]), len(data), masked_crc32c(data))
        entries[name.encode("utf8")] = entry(TYPES[values.dtype.name], values.shape, *place)
        shards[shard] += data
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for shard, data in enumerate(shards):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{n_shards:05d}").write_bytes(data)
    write_index(prefix, entries, compress=compress)
    return entries


def write_index(prefix: Path, entries: Mapping[bytes, bytes], **options: Any) -> None:
    prefix.with_name(prefix.name + ".index").write_bytes(table(entries, **options))


def bilm_tf_variables(datasets: Mapping[str, np.ndarray], scope: str = "lm/") -> dict[str, np.ndarray]:
    """The datasets of an hdf5 file as bilm-tf calls them in its checkpoints, and what its optimizer adds."""
    n_layers = 1 + max(int(layer) for name in datasets for layer in re.findall(r"/Cell(\d+)/", name))
    variables: dict[str, np.ndarray] = {}
    for name, values in datasets.items():
        if name.startswith("RNN_"):
            direction, _, _, layer, _, part = name.split("/")
            level = "" if n_layers == 1 else f"multi_rnn_cell/cell_{layer.removeprefix('Cell')}/"
            part = {"W_0": "kernel", "B": "bias", "W_P_0": "projection/kernel"}[part]
            name = f"{direction}/rnn/{level}lstm_cell/{part}"
        variables[scope + name] = values
        variables[f"{scope}{name}/Adagrad"] = np.full_like(values, np.nan)
    variables["global_step"] = np.array(1250.0, "float32")
    variables["train_perplexity"] = np.array(0.0, "float32")
    return variables
