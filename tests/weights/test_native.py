from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spacy_elmo.errors import WeightsError
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.softmax import AdaptiveSoftmax, FullSoftmax
from spacy_elmo.weights.files import write_atomically
from spacy_elmo.weights.native import (
    bilm_from_bytes,
    bilm_to_bytes,
    load_bilm,
    load_head,
    read_config,
    save_bilm,
    save_head,
)

CONFIG = BiLMConfig(
    character_dim=3, filters=((1, 3), (2, 4)), max_characters=8, n_highway=1, projection=4, cells=6, n_layers=1
)
SENTENCES = [["a", "word", "naïve"], [], ["<S>"]]


@pytest.fixture(scope="module")
def bilm():
    torch.manual_seed(0)
    return BiLM(CONFIG)


@pytest.fixture
def saved(tmp_path, bilm):
    save_bilm(bilm, tmp_path)
    return tmp_path


def same_weights(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def edit_config(directory, **changes):
    path = directory / "config.json"
    settings = json.loads(path.read_text())
    settings["bilm"].update(changes)
    path.write_text(json.dumps(settings))


def edit_weights(directory, change):
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_round_trip_is_exact(saved, bilm):
    found = load_bilm(saved)
    assert found.config == bilm.config == read_config(saved)
    assert same_weights(found, bilm)
    assert not any(parameter.requires_grad for parameter in found.parameters())
    same = copy.deepcopy(bilm).requires_grad_(False)
    assert torch.equal(found(SENTENCES).layers, same(SENTENCES).layers)


def test_the_random_generator_is_left_alone(saved):
    before = torch.random.get_rng_state()
    load_bilm(saved)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_loading_under_inference_mode_gives_ordinary_weights(saved):
    with torch.inference_mode():
        found = load_bilm(saved)
    assert not any(parameter.is_inference() for parameter in found.parameters())


def test_half_precision(tmp_path, saved, bilm):
    save_bilm(bilm, tmp_path / "half", half=True)
    found = load_bilm(tmp_path / "half")
    assert (tmp_path / "half/model.safetensors").stat().st_size < 0.75 * (saved / "model.safetensors").stat().st_size
    for name, parameter in found.named_parameters():
        assert parameter.dtype == torch.float32
        torch.testing.assert_close(parameter, bilm.get_parameter(name).detach(), atol=1e-6, rtol=2**-11)


def test_a_weight_beyond_half_precision_is_not_written(tmp_path, bilm):
    large = bilm_from_bytes(bilm_to_bytes(bilm))
    large.forward_lm[0].bias[0] = 1e5
    with pytest.raises(WeightsError, match=r"E103.*forward_lm\.0\.bias"):
        save_bilm(large, tmp_path, half=True)
    assert list(tmp_path.iterdir()) == []


def test_bytes_round_trip(bilm):
    data = bilm_to_bytes(bilm)
    found = bilm_from_bytes(data)
    assert found.config == bilm.config
    assert same_weights(found, bilm)
    assert bilm_to_bytes(found) == data


def test_double_weights_are_stored_in_float32(tmp_path, bilm):
    save_bilm(BiLM(CONFIG).double(), tmp_path)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {torch.float32}


def test_the_model_card_and_nothing_else(tmp_path, bilm):
    save_bilm(bilm, tmp_path / "new/deep", model_card="# Füße\n")
    assert sorted(os.listdir(tmp_path / "new/deep")) == ["README.md", "config.json", "model.safetensors"]
    assert (tmp_path / "new/deep/README.md").read_text(encoding="utf-8") == "# Füße\n"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file(saved, name):
    (saved / name).unlink()
    with pytest.raises(WeightsError, match=f"E100.*{name}"):
        load_bilm(saved)


def test_a_missing_directory(tmp_path):
    with pytest.raises(WeightsError, match="E100.*no such directory"):
        load_bilm(tmp_path / "missing")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"{", b"[" * 100_000, b"\0" * 64, b"version https://git-lfs\n"])
def test_a_file_that_is_something_else(saved, name, data):
    (saved / name).write_bytes(data)
    with pytest.raises(WeightsError, match=f"E101.*{name}"):
        load_bilm(saved)


@pytest.mark.parametrize(
    "content", ["[]", "null", "3", "{}", '{"format": 1}', '{"format": 1, "bilm": []}', '{"bilm": {}}']
)
def test_a_config_that_is_none(saved, content):
    (saved / "config.json").write_text(content)
    with pytest.raises(WeightsError, match="E101"):
        read_config(saved)


def test_a_format_of_the_future(saved):
    (saved / "config.json").write_text('{"format": 2, "other": {}}')
    with pytest.raises(WeightsError, match="E104.*format 2"):
        load_bilm(saved)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_experts": 3}, "n_experts"),
        ({"cells": -1}, "cells"),
        ({"cells": "6"}, "cells"),
        ({"cell_clip": float("nan")}, "cell_clip"),
        ({"filters": "none"}, "filters"),
        ({"activation": ["relu"]}, "activation"),
    ],
)
def test_settings_that_are_unknown_or_cannot_be(saved, changes, named):
    edit_config(saved, **changes)
    with pytest.raises(WeightsError, match=f"E101.*{named}"):
        load_bilm(saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"projection": 5},
        {"n_layers": 2},
        {"n_highway": 0},
        {"cells": 2**16},
        {"n_layers": 1000},
        {"n_highway": 1000},
        {"filters": [[1, 2**15], [2, 2**15]]},
        {"projection": 2**16},
    ],
)
def test_a_config_of_another_size_allocates_nothing(saved, changes):
    edit_config(saved, **changes)
    with pytest.raises(WeightsError, match=r"E102.*model\.safetensors"):
        load_bilm(saved)


@pytest.mark.parametrize(
    "changes",
    [{"cells": 10**30}, {"n_layers": 10**12}, {"filters": [[1, 10**9], [2, 10**9]]}, {"projection": 2**62}],
)
def test_a_config_beyond_all_bounds(saved, changes):
    edit_config(saved, **changes)
    with pytest.raises(WeightsError, match=r"E101.*config\.json"):
        load_bilm(saved)


def test_a_shape_that_does_not_fit_is_named(saved):
    edit_config(saved, cells=7)
    with pytest.raises(WeightsError, match=r"E102.*forward_lm\.0\.bias': \(\(24,\), \(28,\)\)"):
        load_bilm(saved)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite(saved, value):
    edit_weights(saved, lambda tensors: tensors["backward_lm.0.bias"].__setitem__(3, value))
    with pytest.raises(WeightsError, match=r"E103.*backward_lm\.0\.bias"):
        load_bilm(saved)


def test_values_beyond_float32(saved):
    edit_weights(
        saved, lambda tensors: tensors.update({"forward_lm.0.bias": torch.full((24,), 1e300, dtype=torch.float64)})
    )
    with pytest.raises(WeightsError, match="E103"):
        load_bilm(saved)


def test_integers_are_no_weights(saved):
    edit_weights(saved, lambda tensors: tensors.update({"forward_lm.0.bias": torch.ones(24, dtype=torch.int32)}))
    with pytest.raises(WeightsError, match=r"E102.*no floats.*forward_lm\.0\.bias.*int32"):
        load_bilm(saved)


def damaged(data: bytes, seed: int) -> bytes:
    chance = random.Random(seed)
    header = 8 + int.from_bytes(data[:8], "little")
    kind = seed % 4
    if kind == 0:
        return data[: chance.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(1 if kind < 3 else 5):
        changed[chance.randrange(8 if kind == 1 and seed % 8 == 1 else header if kind < 3 else len(data))] = (
            chance.randrange(256)
        )
    return bytes(changed)


def test_damaged_bytes_never_give_anything_but_a_weights_error(saved, bilm):
    """Bytes in the data may hold any finite value unnoticed; nothing else may pass, nor any other error."""
    refused = 0
    for seed in range(200):
        (saved / "model.safetensors").write_bytes(damaged((saved / "model.safetensors").read_bytes(), seed))
        for load in (lambda s=seed: bilm_from_bytes(damaged(bilm_to_bytes(bilm), s)), lambda: load_bilm(saved)):
            try:
                found = load()
            except WeightsError:
                refused += 1
            else:
                assert all(parameter.isfinite().all() for parameter in found.parameters())
        save_bilm(bilm, saved)
    assert refused > 200


def test_damaged_configs_never_give_anything_but_a_weights_error(saved):
    data = (saved / "config.json").read_bytes()
    for seed in range(100):
        chance, changed = random.Random(seed), bytearray(data)
        changed[chance.randrange(len(data))] = chance.randrange(256)
        (saved / "config.json").write_bytes(changed)
        try:
            load_bilm(saved)
        except WeightsError as error:
            assert "ELMO-E1" in str(error)


@pytest.mark.parametrize("length", [0, 7, 2**31, 2**62, 2**64 - 1])
def test_a_header_of_hostile_length(bilm, length):
    data = length.to_bytes(8, "little") + bilm_to_bytes(bilm)[8:]
    tracemalloc.start()
    try:
        with pytest.raises(WeightsError, match="E101"):
            bilm_from_bytes(data)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("data", [b"", b"\0", b"\2" + b"\0" * 7 + b"{}", b"\4" + b"\0" * 7 + b"null"])
def test_bytes_that_are_something_else(data):
    with pytest.raises(WeightsError, match="E101"):
        bilm_from_bytes(data)


@pytest.mark.parametrize("head", [FullSoftmax(4, 9), AdaptiveSoftmax(4, 9, [3, 6], 2.0)], ids=["full", "adaptive"])
def test_heads_round_trip(tmp_path, head):
    save_head(head, tmp_path)
    found = load_head(tmp_path)
    assert found.settings == head.settings
    assert same_weights(found, head)


def test_a_missing_head(saved):
    with pytest.raises(WeightsError, match="E100"):
        load_head(saved)


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "full", "projection": 4, "n_words": 10**15},
        {"kind": "full", "projection": 4, "n_words": 10},
        {"kind": "full", "projection": 4},
        {"kind": "adaptive", "projection": 4, "n_words": 9, "cutoffs": 3, "shrink": 2},
        {"kind": "adaptive", "projection": 4, "n_words": 9, "cutoffs": [3], "shrink": 1e-300},
        None,
        [],
    ],
)
def test_a_head_whose_settings_do_not_fit(tmp_path, settings):
    tensors = dict(FullSoftmax(4, 9).state_dict())
    save_file(tensors, tmp_path / "softmax.safetensors", metadata={"softmax": json.dumps(settings)})
    with pytest.raises(WeightsError, match="E10[12]"):
        load_head(tmp_path)


def test_damaged_heads_never_give_anything_but_a_weights_error(tmp_path):
    save_head(AdaptiveSoftmax(4, 9, [3, 6], 2.0), tmp_path)
    path = tmp_path / "softmax.safetensors"
    data = path.read_bytes()
    for seed in range(100):
        path.write_bytes(damaged(data, seed))
        try:
            assert all(parameter.isfinite().all() for parameter in load_head(tmp_path).parameters())
        except WeightsError as error:
            assert "ELMO-E10" in str(error)


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(*_):
        raise OSError("full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        write_atomically(path, b"new")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"old", ["file"])


MEASURED = """
import sys, torch
from pathlib import Path
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.weights.native import *

def growth(do):
    Path("/proc/self/clear_refs").write_text("5")
    before = resident()
    kept = do()
    print((resident() - before) / size)
    return kept

def resident():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])

config = BiLMConfig(filters=((1, 8),), n_highway=0, cells=2048, projection=256, n_layers=1)
bilm = BiLM(config)
size = 4 * sum(parameter.numel() for parameter in bilm.parameters())
save_bilm(BiLM(BiLMConfig(cells=4, projection=2, n_layers=1)), "small")
load_bilm("small")
growth(lambda: save_bilm(bilm, "large"))
data = growth(lambda: bilm_to_bytes(bilm))
loaded = growth(lambda: load_bilm("large"))
again = growth(lambda: bilm_from_bytes(data))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="the system keeps no peak that can be reset")
def test_no_second_copy_of_the_weights_is_held(tmp_path):
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", MEASURED], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    save, to_bytes, load, from_bytes = map(float, process.stdout.split())
    # By the size of the weights, of which what is returned is 1.
    assert save < 0.4
    assert max(to_bytes, load, from_bytes) < 1.4
