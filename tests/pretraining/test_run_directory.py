from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from spacy_elmo.errors import TrainingError
from spacy_elmo.pretraining import run_directory
from spacy_elmo.pretraining.run_directory import RunLock, is_file_of_run, make_run_directory, require_room

fcntl = pytest.importorskip("fcntl")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vocabulary.txt.gz", True),
        ("metrics.jsonl", True),
        ("checkpoints/step-00000001.safetensors", True),
        ("a.txt", False),
        ("texts/vocabulary.txt.gz", False),
        ("../vocabulary.txt.gz", False),
    ],
)
def test_files_of_a_run(tmp_path, monkeypatch, name, expected):
    run = tmp_path / "run"
    run.mkdir()
    assert is_file_of_run(run / name, run) is expected
    monkeypatch.chdir(tmp_path)
    assert is_file_of_run(run / name, Path("run")) is expected
    (tmp_path / "link").symlink_to(run)
    assert is_file_of_run(tmp_path / "link" / name, run) is expected


def test_a_directory_that_is_there_is_left_as_it_is(tmp_path):
    make_run_directory(tmp_path / "a" / "b", [])
    (tmp_path / "a" / "b" / "file").touch()
    make_run_directory(tmp_path / "a" / "b", [tmp_path / "a" / "text.txt", tmp_path / "a" / "b" / "texts" / "1.txt"])
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["file"]


@pytest.mark.parametrize("place", ["file", "file/run", "dangling"])
def test_a_place_where_no_directory_can_be(tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(TrainingError, match="E218"):
        make_run_directory(tmp_path / place, [])


def test_a_directory_that_cannot_be_made(tmp_path):
    with pytest.raises(TrainingError, match="E215"):
        make_run_directory(tmp_path / ("long" * 100), [])


def test_a_directory_of_text_is_none_for_a_run(tmp_path):
    with pytest.raises(TrainingError, match=r"E217.*1\.txt"):
        make_run_directory(tmp_path, [tmp_path / "1.txt"])


@pytest.mark.parametrize("name", ["a.txt", "b.jsonl.gz"])
def test_no_run_begins_among_other_text(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(TrainingError, match=f"E217.*{name}"):
        require_room(tmp_path, resume=True)


def test_the_files_of_a_run_that_has_just_begun_are_no_other_text(tmp_path):
    for name in ("vocabulary.txt.gz", "metrics.jsonl"):
        (tmp_path / name).touch()
    require_room(tmp_path, resume=True)


def test_the_log_of_the_run_is_no_other_text(tmp_path):
    with open(tmp_path / "log.txt", "w") as log:
        before = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            require_room(tmp_path, resume=True)
        finally:
            os.dup2(before, 2)
            os.close(before)


def test_one_lock_at_a_time_which_names_its_holder(tmp_path):
    one, other = RunLock(tmp_path), RunLock(tmp_path)
    one.acquire()
    one.acquire()
    for _ in range(2):
        with pytest.raises(TrainingError, match=f"E219.*process {os.getpid()} on "):
            other.acquire()
    one.release()
    assert list(tmp_path.iterdir()) == []
    other.acquire()
    other.release()
    other.release()


def test_the_file_that_a_killed_process_left_locks_nothing(tmp_path):
    (tmp_path / "run.lock").write_text("process 1 on elsewhere, a name longer than that of this machine" * 9)
    lock = RunLock(tmp_path)
    lock.acquire()
    assert (tmp_path / "run.lock").read_text().startswith(f"process {os.getpid()} on ")
    assert "elsewhere" not in (tmp_path / "run.lock").read_text()


def test_a_file_deleted_by_its_last_holder_is_not_taken_for_the_lock(tmp_path, monkeypatch):
    flock, calls = fcntl.flock, []

    def deleted_first(file, how):
        calls.append(how)
        if len(calls) == 1:
            (tmp_path / "run.lock").unlink()
        flock(file, how)

    monkeypatch.setattr(run_directory.fcntl, "flock", deleted_first)
    lock, other = RunLock(tmp_path), RunLock(tmp_path)
    lock.acquire()
    assert len(calls) == 2
    with pytest.raises(TrainingError, match="E219"):
        other.acquire()


def test_where_there_are_no_locks_nothing_is_locked(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_directory.fcntl, "flock", none)
    locks = [RunLock(tmp_path), RunLock(tmp_path)]
    for lock in locks:
        lock.acquire()
    for lock in locks:
        lock.release()
    monkeypatch.setattr(run_directory, "fcntl", None)
    RunLock(tmp_path / "missing").acquire()


def test_a_lock_that_cannot_be_written(tmp_path):
    with pytest.raises(TrainingError, match="E215"):
        RunLock(tmp_path / "missing").acquire()
