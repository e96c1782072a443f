from __future__ import annotations

import errno
import json
import os
import random
import resource
import warnings

import pytest
import torch
from safetensors.torch import save

from spacy_elmo.errors import ElmoWarning, TrainingError
from spacy_elmo.pretraining.checkpoint import (
    BEST,
    Checkpoint,
    find_checkpoints,
    load_newest_checkpoint,
    read_checkpoint,
    save_best,
)
from spacy_elmo.pretraining.checkpoint import save_checkpoint as save_with

PROGRESS = {
    "config": {},
    "settings": {},
    "chosen": {},
    "step": 1,
    "words": 2,
    "words_an_epoch": 3,
    "position": [0, 0, 1],
}


def checkpoint(step=1):
    tensors = {"bilm.a": torch.full((50, 40), 0.1 * step), "optimizer.0.step": torch.tensor(1.0)}
    return Checkpoint(tensors, {**PROGRESS, "step": step})


def save_checkpoint(directory, step, found, keep=2, good=0):
    return save_with(directory, step, found, keep, [good])


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_round_trip(tmp_path):
    save_checkpoint(tmp_path, 3, checkpoint(3))
    found = load_newest_checkpoint(tmp_path)
    assert found.progress == {**PROGRESS, "step": 3}
    assert torch.equal(found.parts()["bilm"]["a"], checkpoint(3).tensors["bilm.a"])
    assert found.parts()["optimizer"]["0.step"].shape == ()


def test_none_in_an_empty_or_missing_directory(tmp_path):
    assert load_newest_checkpoint(tmp_path) is None
    assert load_newest_checkpoint(tmp_path / "missing") is None


def test_the_newest_two_are_kept(tmp_path):
    for step in (5, 900, 100_000_000, 100_000_005):
        save_checkpoint(tmp_path, step, checkpoint(step))
    assert [path.name for path in find_checkpoints(tmp_path)] == [
        "step-100000005.safetensors",
        "step-100000000.safetensors",
    ]


def test_the_newest_up_to_the_last_good_step_is_kept(tmp_path):
    for step in (5, 10, 15, 20, 25):
        save_checkpoint(tmp_path, step, checkpoint(step), keep=1, good=12)
    assert names(tmp_path) == ["step-00000010.safetensors", "step-00000025.safetensors"]
    assert load_newest_checkpoint(tmp_path, up_to=24).progress["step"] == 10
    assert load_newest_checkpoint(tmp_path, up_to=9) is None


def test_the_best_is_none_of_those_to_resume_from(tmp_path):
    save_best(tmp_path, checkpoint(3))
    save_best(tmp_path, checkpoint(4))
    assert find_checkpoints(tmp_path) == []
    assert read_checkpoint(tmp_path / BEST).progress["step"] == 4


@pytest.mark.parametrize("seed", range(60))
def test_any_broken_byte_is_found_and_the_one_before_serves(tmp_path, seed):
    save_checkpoint(tmp_path, 1, checkpoint(1))
    newest = save_checkpoint(tmp_path, 2, checkpoint(2))
    chance, data = random.Random(seed), bytearray(newest.read_bytes())
    if seed % 3:
        place = chance.randrange(600 if seed % 2 else len(data))
        data[place] ^= 1 << chance.randrange(8)
    else:
        del data[chance.randrange(len(data)) :]
    newest.write_bytes(data)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = load_newest_checkpoint(tmp_path)
    if found.progress["step"] == 2:  # a changed space of the header's padding
        assert torch.equal(found.tensors["bilm.a"], checkpoint(2).tensors["bilm.a"])
    else:
        assert found.progress["step"] == 1
        assert "W200" in str(caught[0].message) and newest.name in str(caught[0].message)


def test_broken_ones_give_way_to_what_is_written_next(tmp_path):
    for step in (1, 8, 9):
        save_checkpoint(tmp_path, step, checkpoint(step), keep=3)
    for step in (8, 9):
        (tmp_path / f"step-{step:08}.safetensors").write_bytes(b"broken")
    with pytest.warns(ElmoWarning, match="W200"):
        load_newest_checkpoint(tmp_path)
    save_checkpoint(tmp_path, 2, checkpoint(2))
    assert names(tmp_path) == ["step-00000001.safetensors", "step-00000002.safetensors"]


@pytest.mark.parametrize("data", [b"", b"\xff" * 200, b"\x10" + b"\0" * 7 + b"[" * 16, b"\x02" + b"\0" * 7 + b"{}"])
def test_all_broken(tmp_path, data):
    (tmp_path / "step-00000004.safetensors").write_bytes(data)
    with pytest.warns(ElmoWarning, match="W200"), pytest.raises(TrainingError, match="E211.*step-00000004"):
        load_newest_checkpoint(tmp_path)


def test_a_checkpoint_without_checksum_is_broken(tmp_path):
    data = save(checkpoint().tensors, metadata={"progress": json.dumps(PROGRESS)})
    (tmp_path / "step-00000001.safetensors").write_bytes(data)
    with pytest.warns(ElmoWarning, match="W200.*checksum"), pytest.raises(TrainingError, match="E211"):
        load_newest_checkpoint(tmp_path)


@pytest.mark.parametrize("function", ["os.replace", "os.fsync"])
def test_a_full_disk_leaves_the_one_before(tmp_path, monkeypatch, function):
    save_checkpoint(tmp_path, 1, checkpoint(1))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(function, full)
    with pytest.raises(TrainingError, match=r"E210.*step-00000002\.safetensors.*No space left"):
        save_checkpoint(tmp_path, 2, checkpoint(2), keep=1)
    assert names(tmp_path) == ["step-00000001.safetensors"]
    assert load_newest_checkpoint(tmp_path).progress["step"] == 1


def test_a_file_that_may_not_grow(tmp_path):
    save_checkpoint(tmp_path, 1, checkpoint(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(TrainingError, match="E210"):
            save_checkpoint(tmp_path, 2, checkpoint(2), keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["step-00000001.safetensors"]


def test_what_a_killed_process_left_is_swept_up(tmp_path):
    (tmp_path / ".step-00000001.safetensors.0a1b2c3d").write_bytes(b"half")
    save_checkpoint(tmp_path, 2, checkpoint(2))
    assert names(tmp_path) == ["step-00000002.safetensors"]


def test_the_file_has_the_usual_permissions(tmp_path):
    mask = os.umask(0o027)
    try:
        path = save_checkpoint(tmp_path, 1, checkpoint())
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o640
