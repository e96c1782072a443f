"""Output files that are whole or not there: what is left of them, and what is removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spacy_elmo.cli.output_files import whole_file
from spacy_elmo.errors import ElmoError

posix = pytest.mark.skipif(os.name != "posix", reason="processes cannot be asked for here")


@pytest.fixture(scope="module")
def ended() -> int:
    """The number of a process that is over."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def files_of(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    output = tmp_path / "new" / "v.npz"
    with whole_file(output) as fresh:
        fresh.write_bytes(b"whole")
        assert not output.exists()
    assert output.read_bytes() == b"whole"
    assert files_of(output.parent) == ["v.npz"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ElmoError, OSError])
def test_failure_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    output = tmp_path / "v.npz"
    output.write_bytes(b"from before")
    with pytest.raises((KeyboardInterrupt, ElmoError)), whole_file(output) as fresh:
        fresh.write_bytes(b"ha")
        raise error
    assert output.read_bytes() == b"from before"
    assert files_of(tmp_path) == ["v.npz"]


@posix
def test_left_of_ended_processes_is_removed(tmp_path: Path, ended: int) -> None:
    # A name is no pattern: of "v[1].npz", nothing that belongs to "v1.npz" is touched.
    output = tmp_path / "v[1].npz"
    kept = [f".v1.npz.{ended}.part", f".v[1].npz.{os.getppid()}.part", ".v[1].npz.mine.part", f".v[1].npz.{ended}"]
    for name in [*kept, f".v[1].npz.{ended}.part", f".v[1].npz.{10**30}.part"]:
        (tmp_path / name).touch()
    with whole_file(output):
        pass
    assert files_of(tmp_path) == sorted([*kept, output.name])


def test_directory_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "v.npz").mkdir()
    with pytest.raises(ElmoError, match="E406.*it is a directory"), whole_file(tmp_path / "v.npz"):
        pytest.fail("begun")
    assert files_of(tmp_path) == ["v.npz"]


@pytest.mark.parametrize("place", ["{file}/v.npz", "/sys/kernel/v.npz", "{directory}/{long}.npz"])
def test_place_that_cannot_be_written_is_noticed_at_once(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    output = Path(place.format(file=tmp_path / "file", directory=tmp_path, long="v" * 300))
    if place.startswith("/sys") and not output.parent.is_dir():
        pytest.skip("there is no directory here that not even root may write to")
    with pytest.raises(ElmoError, match="E406"), whole_file(output):
        pytest.fail("begun")
