"""Tensors that torch.save wrote, and files that try to be more than that."""

from __future__ import annotations

import io
import pickle
import random
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import state_dicts
from spacy_elmo.weights.state_dicts import read_state_dict

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}
FORMS = pytest.mark.parametrize("zipped", [False, True], ids=["old", "zip"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "encoder.pkl"


def save(found: Any, path: Path, zipped: bool) -> bytes:
    torch.save(found, path, _use_new_zipfile_serialization=zipped)
    return path.read_bytes()


def assert_refused(path: Path, named: str = "") -> None:
    started = time.monotonic()
    with pytest.raises(WeightsError, match=f"E156.*{path.name}.*{named}"):
        read_state_dict(path)
    assert time.monotonic() - started < 10


def write_pickle(path: Path, instructions: bytes, zipped: bool) -> None:
    """A file of torch.save with other instructions, and the data of one float, of the name that KEY stands for."""
    data = save({"a": torch.ones(1)}, path, zipped)
    if zipped:
        instructions = instructions.replace(KEY, string(b"0"))
        write_zip(
            path, {name: instructions if name.endswith(".pkl") else part for name, part in zip_parts(data).items()}
        )
    else:
        start, end = data.index(b"\x80\x02}q\x00X\x01\x00\x00\x00a"), data.index(b"\x80\x02]q\x00X")
        key = data[end + 5 :].partition(b"q\x01a.")[0]
        path.write_bytes(data[:start] + instructions.replace(KEY, key) + data[end:])


KEY = b"<key>"


def string(text: bytes) -> bytes:
    return b"X" + len(text).to_bytes(4, "little") + text


def zip_parts(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_zip(path: Path, parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)


# What is read.


@FORMS
def test_tensors_are_read(path: Path, zipped: bool) -> None:
    save(TENSORS, path, zipped)
    found = read_state_dict(path)
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)


@FORMS
def test_the_state_of_a_module_is_read(path: Path, zipped: bool) -> None:
    """It has the versions of its parts with it, and may have parameters."""
    module = torch.nn.Sequential(*(torch.nn.Linear(2, 3) for _ in range(40)))
    save(module.state_dict(keep_vars=True), path, zipped)
    found = read_state_dict(path)
    assert all(torch.equal(found[name], values) for name, values in module.state_dict().items())
    assert not any(tensor.requires_grad for tensor in found.values())


@pytest.mark.parametrize("place", [b"cpu", b"cuda:0"])
def test_files_of_torch_before_0_4_are_read(path: Path, place: bytes) -> None:
    """They rebuild tensors with a function of four arguments."""
    data = save({"a": torch.tensor([1.0, 2.0])}, path, zipped=False)
    data = data.replace(b"_rebuild_tensor_v2", b"_rebuild_tensor").replace(b"X\x03\x00\x00\x00cpu", string(place))
    hooks = data[data.index(b"\x89ccollections") : data.index(b"Rq\x0bt")]
    path.write_bytes(data.replace(hooks + b"Rq\x0b", b""))
    assert read_state_dict(path)["a"].tolist() == [1, 2]


# What is not.


class Evil:
    """Leaves a file behind when it is unpickled without care."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.marker, "executed")


@FORMS
def test_nothing_is_executed(tmp_path: Path, path: Path, zipped: bool) -> None:
    marker = tmp_path / "marker"
    save({"a": torch.ones(1), "b": Evil(marker)}, path, zipped)
    torch.load(path, weights_only=False)
    assert marker.read_text() == "executed"
    marker.unlink()
    assert_refused(path, "asks for")
    assert not marker.exists()


GIANT = 10**11
# Instructions, and what is said of them. Some of these take torch itself down, or all memory or time.
BOMBS: dict[str, tuple[bytes, str]] = {
    "a giant array of bytes": (b"c__builtin__\nbytearray\n" + pickle.dumps((GIANT,), 2)[2:-1] + b"R", "bytearray"),
    "a giant tensor": (b"ctorch\nFloatTensor\n" + pickle.dumps((GIANT,), 2)[2:-1] + b"R", "torch FloatTensor"),
    "a module": (b"ctorch.nn.modules.linear\nLinear\n", "Linear"),
    "tuples of tuples": (b"})" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(60)) + b"Ns", "container twice"),
    "a list that holds itself": (b"]q\x00h\x00a", "container twice"),
    "a deep tuple": (b"})" + b"\x85" * 1_000_000 + b"Ns", "more instructions"),
    "many lists": (b"}" + string(b"a") + b"(" + b"]" * 1_000_000 + b"ls", "more instructions"),
    "a long name": (b"X\xff\xff\xff\xff", "4294967295 bytes"),
    "protocol 5": (b"\x80\x05}", "instruction PROTO"),
    "a frame": (b"\x95" + GIANT.to_bytes(8, "little"), "instruction FRAME"),
    "nothing on the stack": (b"0", "instruction POP"),
    "nothing": (b"N", ""),
    "a list": (b"]", ""),
    "a number": (b"}" + string(b"a") + b"K\x01s", ""),
    "names that are numbers": (b"}K\x01K\x01s", ""),
}


@FORMS
@pytest.mark.parametrize("bomb", BOMBS)
def test_more_than_tensors_is_refused(path: Path, bomb: str, zipped: bool) -> None:
    instructions, named = BOMBS[bomb]
    write_pickle(path, b"\x80\x02" + instructions + b".", zipped)
    assert_refused(path, named)


def tensor_pickle(numel: int, shape: tuple[int, ...], steps: tuple[int, ...], zipped: bool) -> bytes:
    """Instructions for one tensor "a" over the data that `write_pickle` leaves there."""
    count, sizes, strides = (pickle.dumps(value, 2)[2:-1] for value in (numel, shape, steps))
    storage = b"(" + string(b"storage") + b"ctorch\nFloatStorage\n" + KEY + string(b"cpu") + count
    rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + (b"tQ" if zipped else b"NtQ") + b"K\x00"
    return b"\x80\x02}" + string(b"a") + rebuild + sizes + strides + b"\x89ccollections\nOrderedDict\n)RtRs."


@FORMS
@pytest.mark.parametrize(
    ("numel", "shape", "steps"),
    [
        (GIANT // 4, (GIANT // 4,), (1,)),
        (10**18, (1,), (1,)),
        (-1, (1,), (1,)),
        (1, (2,), (1,)),
        (1, (GIANT,), (0,)),
        (1, (1000, 1000), (0, 0)),
        (1, (-1,), (1,)),
    ],
)
def test_tensors_larger_than_their_data_are_refused(
    path: Path, numel: int, shape: tuple[int, ...], steps: tuple[int, ...], zipped: bool
) -> None:
    write_pickle(path, tensor_pickle(1, (1,), (1,), zipped), zipped)
    assert read_state_dict(path)["a"].tolist() == [1]
    write_pickle(path, tensor_pickle(numel, shape, steps, zipped), zipped)
    assert_refused(path)


@FORMS
@pytest.mark.parametrize(
    "found",
    [
        [torch.ones(1)],
        torch.ones(1),
        {"a": torch.ones(1, dtype=torch.int64)},
        {"a": torch.ones(1, dtype=torch.bool)},
        {"a": torch.ones(1, dtype=torch.complex64)},
        {"a": torch.ones(2, 2).to_sparse()},
        {"a": {"b": torch.ones(1)}},
        {"a": None},
        {3: torch.ones(1)},
        {("a",): torch.ones(1)},
    ],
    ids=str,
)
def test_no_dictionary_of_floats(path: Path, found: Any, zipped: bool) -> None:
    save(found, path, zipped)
    assert_refused(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"PK\x03\x04",
        b"PK\x03\x04" + b"\0" * 100,
        b"\x89HDF\r\n",
        pickle.dumps(TENSORS),
        b"version https:",
    ],
)
def test_a_file_that_is_something_else(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert_refused(path)


@pytest.mark.parametrize(
    ("change", "compression", "named"),
    [
        (lambda parts: None, zipfile.ZIP_DEFLATED, "compressed"),
        (lambda parts: parts.update({"x/data/0": b"\0" * 10**7}), zipfile.ZIP_DEFLATED, "compressed"),
        (lambda parts: parts.update({"y/data.pkl": b"."}), zipfile.ZIP_STORED, "2 parts"),
        (lambda parts: parts.update({"x/constants.pkl": b"."}), zipfile.ZIP_STORED, "2 parts"),
        (lambda parts: parts.update({"x/data.pkl": b"." * 2**23}), zipfile.ZIP_STORED, "moderate"),
        (lambda parts: parts.pop("x/data.pkl"), zipfile.ZIP_STORED, "0 parts"),
        (lambda parts: parts.pop("x/data/0"), zipfile.ZIP_STORED, ""),
        (lambda parts: parts.update({"x/data/0": b"\0" * 3}), zipfile.ZIP_STORED, ""),
    ],
)
def test_zip_files_as_torch_writes_none(
    path: Path, change: Callable[[dict[str, bytes]], Any], compression: int, named: str
) -> None:
    data = save(TENSORS, path, zipped=True)
    parts = {name.replace("encoder/", "x/"): part for name, part in zip_parts(data).items()}
    change(parts)
    write_zip(path, parts, compression)
    assert_refused(path, named)


def test_a_zip_file_whose_parts_overlap(path: Path) -> None:
    """The directory of a zip file may name the same bytes again and again."""
    save(TENSORS, path, zipped=True)
    with zipfile.ZipFile(path, "a") as archive:
        first = next(entry for entry in archive.infolist() if entry.filename.endswith("data/0"))
        for number in range(200):
            again = zipfile.ZipInfo(f"encoder/data/{number + 100}")
            for attribute in ("header_offset", "file_size", "compress_size", "CRC"):
                setattr(again, attribute, getattr(first, attribute))
            again.file_size = again.compress_size = 10**6
            archive.filelist.append(again)
        archive._didModify = True
    assert_refused(path, "larger than the file")


def test_too_many_instructions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(TENSORS, path, zipped=False)
    monkeypatch.setattr(state_dicts, "_MOST_INSTRUCTIONS", 20)
    assert_refused(path, "more instructions")


@FORMS
def test_damaged_files_never_give_anything_but_a_weights_error(path: Path, zipped: bool) -> None:
    """Bytes in the data may hold any value unnoticed; nothing else may pass, nor any other error."""
    data = save(TENSORS, path, zipped)
    refused = 0
    for seed in range(300):
        chance, changed = random.Random(seed), bytearray(data)
        if seed % 3 == 0:
            changed = changed[: chance.randrange(len(data))]
        else:
            for _ in range(1 if seed % 3 == 1 else 5):
                changed[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(changed)
        try:
            found = read_state_dict(path)
        except WeightsError as error:
            assert "E156" in str(error)
            refused += 1
        else:
            assert all(isinstance(tensor, torch.Tensor) for tensor in found.values())
    assert refused > 100
