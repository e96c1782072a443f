"""The reader of TensorFlow's checkpoint format, against a writer that shares nothing with it, and against broken files."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spacy_elmo.errors import WeightsError
from spacy_elmo.weights.crc32c import crc32c
from spacy_elmo.weights.tensor_bundle import TensorBundle
from tests.weights import tf_writer
from tests.weights.tf_writer import block, bytes_field, entry, header, number_field, table, varint, write_bundle

# What the Saver of TensorFlow 2.21 wrote of "a/b", three numbers of float32, and of "s", the int64 number 7.
INDEX_BY_TENSORFLOW = bytes.fromhex(
    "00000608011a02080100030f612f620801120412020803280c3522931b9000010d7308091200200c280835bbd79f11000000"
    "0001000000003156a339000000000100000000c0f2a1b0000102740037000000000100000000b6640d2e3c08490e00000000"
    "000000000000000000000000000000000000000000000000000000000000000057fb808b247547db"
)
DATA_BY_TENSORFLOW = bytes.fromhex("0000c03f000000c0000050400700000000000000")


# The sum.


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_sums_of_rfc_3720(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected == tf_writer.crc32c(data)


@pytest.mark.parametrize("length", [1, 4, 2047, 2048, 2051, 4096, 2 * 2**16 - 4, 2 * 2**16, 3 * 2**16 + 1029])
def test_sum_of_any_length_is_that_of_the_definition(length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8)
    assert crc32c(data) == tf_writer.crc32c(data.tobytes())
    assert crc32c(data[1:]) == tf_writer.crc32c(data[1:].tobytes())


# What is read.


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return tmp_path / "model.ckpt-7"


def some_tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    tensors = {f"lm/layer_{i}/kernel": random.normal(size=(3, i + 1)).astype("float32") for i in range(17)}
    tensors["global_step"] = np.array(7.0, "float32")
    tensors["double"] = random.normal(size=(2, 1, 2))
    tensors["half"] = random.normal(size=5).astype("float16")
    tensors["große Namen " * 30] = random.normal(size=2).astype("float32")
    return tensors


def test_tensors_that_tensorflow_wrote(prefix: Path) -> None:
    prefix.with_name(prefix.name + ".index").write_bytes(INDEX_BY_TENSORFLOW)
    prefix.with_name(prefix.name + ".data-00000-of-00001").write_bytes(DATA_BY_TENSORFLOW)
    bundle = TensorBundle(prefix)
    assert bundle.entries["s"][:5] == (tf_writer.INT64, (), 0, 12, 8)
    assert bundle.tensor("a/b").dtype == np.float32
    assert bundle.tensor("a/b").tolist() == [1.5, -2.0, 3.25]


def test_writer_of_these_tests_writes_what_tensorflow_wrote(prefix: Path) -> None:
    """But for the optional numbers that are zero, and the names in the block of handles."""
    tensors = {"a/b": np.array([1.5, -2.0, 3.25], "float32"), "s": np.array(7, "int64")}
    write_bundle(prefix, tensors)
    written = prefix.with_name(prefix.name + ".index").read_bytes()
    assert prefix.with_name(prefix.name + ".data-00000-of-00001").read_bytes() == DATA_BY_TENSORFLOW
    assert written[-8:] == INDEX_BY_TENSORFLOW[-8:]
    ours = TensorBundle(prefix).entries
    prefix.with_name(prefix.name + ".index").write_bytes(INDEX_BY_TENSORFLOW)
    assert ours == TensorBundle(prefix).entries


@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("compress", [False, True])
def test_tensors_are_read_bit_for_bit(prefix: Path, n_shards: int, compress: bool) -> None:
    tensors = some_tensors()
    write_bundle(prefix, tensors, n_shards, compress)
    bundle = TensorBundle(prefix)
    assert set(bundle.entries) == set(tensors)
    assert bundle.size == sum(values.nbytes for values in tensors.values())
    for name, values in tensors.items():
        found = bundle.tensor(name)
        assert (found.dtype, found.shape, found.tobytes()) == (values.dtype, values.shape, values.tobytes())


def test_integers_are_listed_but_not_read(prefix: Path) -> None:
    write_bundle(prefix, {"global_step": np.array(7, "int64")})
    bundle = TensorBundle(prefix)
    assert bundle.entries["global_step"].type == tf_writer.INT64
    with pytest.raises(WeightsError, match=r"E130.*global_step.*type number 9"):
        bundle.tensor("global_step")


def test_partitioned_variable_is_not_read(prefix: Path) -> None:
    entries = write_bundle(prefix, {"a": np.zeros(2, "float32")})
    entries[b"a"] += bytes_field(7, bytes_field(1, number_field(1, 1)))
    tf_writer.write_index(prefix, entries)
    with pytest.raises(WeightsError, match=r"E130.*a partitioned variable"):
        TensorBundle(prefix).tensor("a")


def test_fields_of_later_versions_are_passed_over(prefix: Path) -> None:
    entries = write_bundle(prefix, {"a": np.ones(2, "float32")})
    entries[b"a"] += varint(20 * 8 + 1) + bytes(8) + varint(21 * 8 + 5) + bytes(4) + bytes_field(22, b"new")
    tf_writer.write_index(prefix, entries)
    assert TensorBundle(prefix).tensor("a").tolist() == [1, 1]


# What is refused.


def _refused(prefix: Path, code: str, *parts: str, name: str = "a") -> None:
    with pytest.raises(WeightsError) as caught:
        TensorBundle(prefix).tensor(name)
    message = str(caught.value)
    assert message.startswith(f"[ELMO-{code}]"), message
    for part in parts:
        assert part in message


@pytest.fixture
def entries(prefix: Path) -> dict[bytes, bytes]:
    return write_bundle(prefix, {"a": np.ones((2, 3), "float32"), "b": np.zeros(4, "float32")})


@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
def test_missing_file(prefix: Path, entries: dict[bytes, bytes], suffix: str) -> None:
    prefix.with_name(prefix.name + suffix).unlink()
    _refused(prefix, "E138", str(prefix), "No such file")


@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
def test_folder_instead_of_a_file(prefix: Path, entries: dict[bytes, bytes], suffix: str) -> None:
    path = prefix.with_name(prefix.name + suffix)
    path.unlink()
    path.mkdir()
    _refused(prefix, "E138", str(prefix))


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (lambda data: b"", "does not end as a table does"),
        (lambda data: data[:-1], "does not end as a table does"),
        (lambda data: data[:-8] + b"\x89HDF\r\n\x1a\n", "does not end as a table does"),
        (lambda data: data[-48:], "lies beyond its end"),
        (lambda data: b"\xff" + data[1:], "the sum of the block at 0"),
        (lambda data: data + bytes(2**22), "more than 4194304 bytes"),
        (lambda data: data[:-48] + b"\xff" * 40 + data[-8:], "an integer does not end"),
    ],
)
def test_index_that_is_broken(
    prefix: Path, entries: dict[bytes, bytes], damage: Callable[[bytes], bytes], part: str
) -> None:
    path = prefix.with_name(prefix.name + ".index")
    path.write_bytes(damage(path.read_bytes()))
    _refused(prefix, "E139", str(path), part)


@pytest.mark.parametrize("length", [0, 5, 39])
def test_data_that_is_cut_off(prefix: Path, entries: dict[bytes, bytes], length: int) -> None:
    path = prefix.with_name(prefix.name + ".data-00000-of-00001")
    path.write_bytes(path.read_bytes()[:length])
    _refused(prefix, "E139", str(path), "'b' ends at 40", name="b")


def test_data_of_a_flipped_bit(prefix: Path, entries: dict[bytes, bytes]) -> None:
    path = prefix.with_name(prefix.name + ".data-00000-of-00001")
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    _refused(prefix, "E139", str(path), "the sum of 'a'")
    assert TensorBundle(prefix).tensor("b").tolist() == [0, 0, 0, 0]


HUGE = 2**62


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        (entry(1, (2, 3), 0, HUGE, 24, 0), f"ends at {HUGE + 24}"),
        (entry(1, (HUGE, HUGE), 0, 0, 24, 0), "needs"),
        (entry(1, (HUGE,), 0, 0, 4 * HUGE, 0), f"ends at {4 * HUGE}"),
        (entry(1, (2, 3), 0, 0, 23, 0), "has 23 in shard 0"),
        (entry(1, (2, 3), 1, 0, 24, 0), "in shard 1"),
        (entry(1, (1,) * 33, 0, 0, 4, 0), "33 dimensions"),
        (entry(1, (2**64 - 1,), 0, 0, 24, 0), "needs"),
        (number_field(2, 5), "should be a message"),
        (bytes_field(1, b"?"), "should be a number"),
        (bytes_field(2, bytes_field(2, number_field(1, 1)))[:-1], "runs over the end of its message"),
        (b"\x0b", "unknown kind 3"),
        (b"\x08" + b"\x80" * 11, "an integer does not end"),
    ],
)
def test_entry_that_cannot_be(prefix: Path, entries: dict[bytes, bytes], changed: bytes, part: str) -> None:
    tf_writer.write_index(prefix, {**entries, b"a": changed})
    _refused(prefix, "E139", part)


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        (header(0), "0 data files"),
        (header(10**9), "1000000000 data files"),
        (header(1, endianness=1), "big endian"),
        (b"", "0 data files"),
    ],
)
def test_header_that_cannot_be(prefix: Path, entries: dict[bytes, bytes], changed: bytes, part: str) -> None:
    tf_writer.write_index(prefix, {**entries, b"": changed})
    _refused(prefix, "E139", part)


def _index_of(prefix: Path, *blocks: tuple[bytes, int], handles: list[tuple[int, int]] | None = None) -> None:
    """An index of blocks of contents and kind as given, each where it lies or, if told, elsewhere."""
    file, where = b"", []
    for contents, kind in blocks:
        where.append((len(file), len(contents)))
        file += contents + bytes([kind]) + struct.pack("<I", tf_writer.masked_crc32c(contents + bytes([kind])))
    listed = [(b"%03d" % i, varint(at) + varint(size)) for i, (at, size) in enumerate(handles or where)]
    index = block(listed)
    footer = (varint(0) + varint(0) + varint(len(file)) + varint(len(index))).ljust(40, b"\0")
    sum_of_index = struct.pack("<I", tf_writer.masked_crc32c(index + b"\0"))
    end = footer + struct.pack("<Q", 0xDB4775248B80FB57)
    prefix.with_name(prefix.name + ".index").write_bytes(file + index + b"\0" + sum_of_index + end)


ENTRIES = block([(b"", header(1)), (b"a", entry(1, (), 0, 0, 4, 0))])


def test_index_of_the_helper_is_good(prefix: Path) -> None:
    _index_of(prefix, (ENTRIES, 0))
    assert TensorBundle(prefix).entries.keys() == {"a"}


def test_compressed_block_with_a_copy_from_far_back(prefix: Path) -> None:
    """Entries alike, with 300 bytes of a field of later versions between them."""
    alike, between = entry(1, (5, 7), 0, 0, 140, 0x12345678), np.random.default_rng(0).bytes(300)
    contents = block([(b"", header(1)), (b"a", alike + bytes_field(22, between)), (b"b", alike)])
    _index_of(prefix, (tf_writer.snappy(contents), 1))
    entries = TensorBundle(prefix).entries
    assert entries["a"] == entries["b"] == (1, (5, 7), 0, 0, 140, 0x12345678, False)


@pytest.mark.parametrize(
    ("blocks", "handles", "part"),
    [
        ([(ENTRIES, 0)], [(0, len(ENTRIES))] * 1000, "its blocks overlap"),
        ([(ENTRIES, 0), (ENTRIES, 0)], None, "not in order"),
        ([(ENTRIES, 2)], None, "unknown way 2"),
        ([(b"", 0)], None, "a block is too short"),
        ([(ENTRIES[:-4] + struct.pack("<I", 2**31), 0)], None, "a block is too short"),
        ([(b"\x05\x01\x00a" + ENTRIES[-8:], 0)], None, "runs over the end of its block"),
        ([(b"\x00\x01\x7fa" + ENTRIES[-8:], 0)], None, "runs over the end of its block"),
        ([(block([(b"", header(1)), (b"\xff", b"")]), 0)], None, "codec can't decode"),
        ([(varint(2**40) + b"\0", 1)], None, f"says that it has {2**40} bytes"),
        ([(varint(9) + b"\x01\x01", 1)], None, "copies from before its beginning"),
        ([(varint(9) + b"\x00a", 1)], None, "does not have the length"),
        ([(varint(1) + b"\xf0\xff", 1)], None, "does not have the length"),
        ([(varint(4) + b"\x0cabcd" + b"\x0cabcd", 1)], None, "does not have the length"),
    ],
)
def test_table_that_cannot_be(
    prefix: Path, blocks: list[tuple[bytes, int]], handles: list[tuple[int, int]] | None, part: str
) -> None:
    _index_of(prefix, *blocks, handles=handles)
    _refused(prefix, "E139", part)


def test_names_that_grow_without_end(prefix: Path) -> None:
    """Each name is the one before and a letter more: 100 kB that would take gigabytes."""
    contents = b"".join(varint(i) + b"\x01\x00a" for i in range(20_000))
    _index_of(prefix, (contents + struct.pack("<II", 0, 1), 0))
    _refused(prefix, "E139", "more than 16777216 bytes of names")


def test_compressed_block_that_grows_beyond_what_it_says(prefix: Path) -> None:
    """Copies of 64 bytes in 3, which is the most there is: the size of the file bounds what comes of it."""
    _index_of(prefix, (varint(2**24) + b"\x00a" + b"\xfe\x01\x00" * 30_000, 1))
    _refused(prefix, "E139", "does not have the length")


def test_files_damaged_at_random(prefix: Path) -> None:
    """Whatever is damaged: the tensors as they were written, or a named error."""
    tensors = some_tensors()
    write_bundle(prefix, tensors, n_shards=2)
    paths = sorted(prefix.parent.iterdir())
    whole = {path: path.read_bytes() for path in paths}
    random = np.random.default_rng(1)
    refused = 0
    for _ in range(150):
        path = paths[random.integers(len(paths))]
        path.write_bytes(_damaged(whole[path], random))
        try:
            bundle = TensorBundle(prefix)
            for name, values in tensors.items():
                assert bundle.tensor(name).tobytes() == values.tobytes()
        except WeightsError:
            refused += 1
        path.write_bytes(whole[path])
    assert refused > 120


def _damaged(data: bytes, random: Any) -> bytes:
    at = int(random.integers(len(data)))
    kind = random.integers(3)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([data[at] ^ 1 << int(random.integers(8))]) + data[at + 1 :]
    return data[:at] + random.bytes(8) + data[at + 8 :]


def test_damage_that_sums_do_not_see(prefix: Path) -> None:
    """Entries of random bytes under correct sums: a named error, soon, whatever they say."""
    entries = write_bundle(prefix, {"a": np.ones((2, 3), "float32")})
    random = np.random.default_rng(2)
    outcomes = set()
    for _ in range(300):
        changed = _damaged(entries[b"a"], random) + random.bytes(int(random.integers(4)))
        prefix.with_name(prefix.name + ".index").write_bytes(table({**entries, b"a": changed}))
        try:
            outcomes.add(TensorBundle(prefix).tensor("a").shape)
        except WeightsError as error:
            outcomes.add(str(error)[6:10])
    assert outcomes <= {(2, 3), (3, 2), (6,), "E130", "E138", "E139"} and "E139" in outcomes
