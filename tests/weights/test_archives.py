"""Zip files: what belongs to a model comes out, and a hostile file does nothing."""

from __future__ import annotations

import random
import stat
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import archives
from spacy_elmo.weights.archives import member_names, unpack

FILES = {"options.json": b"{}", "model.hdf5": bytes(range(256)) * 50, "vocab.txt.gz": b"words", "meta.json": b"{}"}


def write(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def content_of(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def assert_refused(path: Path, code: str) -> None:
    """Nothing is left anywhere, neither where it should go nor elsewhere."""
    root = path.parent
    before = content_of(root)
    with pytest.raises(WeightsError, match=code):
        unpack(path, root / "out" / "target", most_bytes=1 << 20)
    assert content_of(root) == before


@pytest.mark.parametrize("folder", ["", "my model/", "a.b/"])
def test_files_at_the_root_or_in_one_folder(tmp_path: Path, folder: str) -> None:
    path = write(tmp_path / "m.zip", {f"{folder}{name}": content for name, content in FILES.items()})
    unpack(path, tmp_path / "out" / "target")
    assert content_of(tmp_path / "out") == {f"target/{name}": content for name, content in FILES.items()}


def test_what_belongs_to_no_model_stays(tmp_path: Path) -> None:
    others = {"__MACOSX/._options.json": b"x", "run.sh": b"x", "code/x.py": b"x", ".hidden.json/x": b"x"}
    unpack(write(tmp_path / "m.zip", {**FILES, **others}), tmp_path / "target")
    assert content_of(tmp_path / "target") == FILES


@pytest.mark.parametrize(
    "name",
    [
        "model.ckpt.index",
        "model.ckpt-12.data-00000-of-00001",
        "checkpoint",
        "encoder.pkl",
        "token_embedder.pkl",
        "char.dic",
        "cnn_50_100_512_4096_sample.json",
        "model.safetensors",
        "vocab-2016-09-10.txt",
        "README",
    ],
)
def test_parts_of_models_are_known(tmp_path: Path, name: str) -> None:
    unpack(write(tmp_path / "m.zip", {name: b"x", "options.json": b"{}"}), tmp_path / "target")
    assert (tmp_path / "target" / name).read_bytes() == b"x"


@pytest.mark.parametrize(
    "name",
    [
        "../options.json",
        "a/../../options.json",
        "/options.json",
        "C:/options.json",
        "C:options.json",
        "a\\options.json",
    ],
)
def test_names_that_lead_outside(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.zip"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("x" * len(name))
        archive.writestr(info, b"{}")
    path.write_bytes(path.read_bytes().replace(b"x" * len(name), name.encode()))
    assert member_names(path)
    assert_refused(path, "E167.*leads out")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices(tmp_path: Path, kind: int) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        info = zipfile.ZipInfo("options.json")
        info.external_attr = (kind | 0o777) << 16
        archive.writestr(info, b"/etc/passwd")
    assert_refused(tmp_path / "m.zip", "E167.*no plain file")


def test_bomb(tmp_path: Path) -> None:
    path = tmp_path / "m.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("model.hdf5", "w") as member:
        for _ in range(32):
            member.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 16
    tracemalloc.start()
    assert_refused(path, "E167.*would grow")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_too_much_in_all(tmp_path: Path) -> None:
    content = random.Random(0).randbytes(300_000)
    assert_refused(write(tmp_path / "m.zip", {f"{i}.json": content for i in range(4)}), "E167.*1,048,576")


def test_size_that_is_a_lie_stops_there(tmp_path: Path) -> None:
    path = write(tmp_path / "m.zip", {"model.hdf5": bytes(1000)})
    data = path.read_bytes().replace(struct.pack("<I", 1000), struct.pack("<I", 10))
    path.write_bytes(data)
    assert_refused(path, "E166")


def test_too_many_members(tmp_path: Path) -> None:
    assert_refused(write(tmp_path / "m.zip", {f"{i}.json": b"" for i in range(1001)}), "E167.*members")


def test_table_of_contents_that_is_huge(tmp_path: Path) -> None:
    path = tmp_path / "m.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(60):
            info = zipfile.ZipInfo(f"{i}.json")
            info.comment = bytes(60_000)
            archive.writestr(info, b"")
    assert path.stat().st_size > 3 << 20
    tracemalloc.start()
    assert_refused(path, "E166.*too large")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_name_that_is_there_twice(tmp_path: Path) -> None:
    assert_refused(write(tmp_path / "m.zip", {"options.json": b"{}", "Options.json": b"[]"}), "E167.*twice")


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions(tmp_path: Path, compression: int) -> None:
    assert_refused(write(tmp_path / "m.zip", FILES, compression), "E167.*compressed")


def test_encrypted_member(tmp_path: Path) -> None:
    path = write(tmp_path / "m.zip", {"options.json": b"{}"})
    data = bytearray(path.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    assert_refused(path, "E167.*encrypted")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), b"no zip"])
def test_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.zip"
    path.write_bytes(content)
    if content[:4] == b"PK\x05\x06":
        assert member_names(path) == []
    else:
        assert_refused(path, "E166")


def test_target_that_is_there_already(tmp_path: Path) -> None:
    unpack(write(tmp_path / "m.zip", FILES), tmp_path / "target")
    unpack(tmp_path / "m.zip", tmp_path / "target")
    assert content_of(tmp_path / "target") == FILES


def test_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    assert_refused(write(tmp_path / "m.zip", FILES), "E165")


def test_damage_is_named_or_harmless(tmp_path: Path) -> None:
    """Bits flipped and ends cut off at random."""
    chance = random.Random(0)
    good = write(tmp_path / "good.zip", FILES).read_bytes()
    refused = 0
    for attempt in range(400):
        data = bytearray(good[: chance.randrange(len(good))] if attempt % 4 == 0 else good)
        for _ in range(chance.randrange(1, 4)):
            if data:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        room = tmp_path / str(attempt)
        room.mkdir()
        path = room / "m.zip"
        path.write_bytes(data)
        try:
            unpack(path, room / "target", most_bytes=1 << 20)
        except WeightsError as error:
            refused += 1
            assert "ELMO-E16" in str(error)
            assert list(content_of(room)) == ["m.zip"]
        else:
            names = {name.partition("/")[0] for name in content_of(room)}
            assert names <= {"m.zip", "target"}
    assert refused > 100


def test_failed_unpacking_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archives, "_unpack_one", full)
    assert_refused(write(tmp_path / "m.zip", FILES), "E165.*No space")


def test_a_member_before_the_beginning_is_damage_and_no_full_disk(tmp_path: Path) -> None:
    data = bytearray(write(tmp_path / "m.zip", FILES).read_bytes())
    # Where the table of contents lies, at the very end: it moves all members by as much.
    data[-6:-2] = (int.from_bytes(data[-6:-2], "little") + 10_000).to_bytes(4, "little")
    (tmp_path / "m.zip").write_bytes(data)
    assert_refused(tmp_path / "m.zip", "E166.*before its beginning")
