from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.weights.fingerprint import fingerprint
from spacy_elmo.weights.native import bilm_from_bytes, bilm_to_bytes, load_bilm, save_bilm

CONFIG = BiLMConfig(
    character_dim=3, filters=((1, 3), (2, 4)), max_characters=8, n_highway=1, projection=4, cells=6, n_layers=1
)
NAME = "b56f0af77f7155d88af9ce6e673b3e00512db3d93c1016caef9e5e7888c47393"


def build(config: BiLMConfig = CONFIG, **vocabularies: list[str]) -> BiLM:
    """Weights that do not depend on torch's generator; float16 holds them exactly."""
    bilm = BiLM(config, vocabularies)
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.copy_((torch.arange(parameter.numel()) % 64 / 64 - 0.5).reshape(parameter.shape))
    return bilm


def test_it_is_the_same_everywhere_and_for_ever():
    assert fingerprint(build()) == NAME


def test_another_process_gives_the_same(tmp_path: Path):
    save_bilm(build(), tmp_path)
    script = (
        "from spacy_elmo.weights.fingerprint import fingerprint; from spacy_elmo.weights.native import load_bilm; "
        f"print(fingerprint(load_bilm({str(tmp_path)!r})))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.split() == [NAME], run.stderr


@pytest.mark.parametrize("half", [False, True])
def test_precision_on_disk_changes_nothing(tmp_path: Path, half: bool):
    save_bilm(build(), tmp_path, half=half)
    assert fingerprint(load_bilm(tmp_path)) == NAME


def test_bytes_device_freezing_precision_and_use_change_nothing():
    assert fingerprint(bilm_from_bytes(bilm_to_bytes(build()))) == NAME
    bilm = build().requires_grad_(False).eval()
    bilm([["a", "word"]])  # fills caches and packs weights
    assert fingerprint(bilm) == NAME
    assert fingerprint(bilm.to(torch.float16)) == NAME
    if torch.cuda.is_available():
        assert fingerprint(build().to("cuda")) == NAME


def test_it_can_be_taken_in_inference_mode():
    with torch.inference_mode():
        assert fingerprint(build()) == NAME


def test_the_smallest_change_of_any_weight_changes_it():
    bilm = build()
    names = {NAME}
    for parameter in bilm.parameters():
        last = parameter.detach().view(-1)[-1:]
        old = last.clone()
        last.copy_(torch.nextafter(old, old + 1))
        names.add(fingerprint(bilm))
        last.copy_(old)
    assert len(names) == 1 + len(list(bilm.parameters()))
    assert fingerprint(bilm) == NAME


@pytest.mark.parametrize(
    "change",
    [
        {"max_characters": 9},
        {"activation": "tanh"},
        {"skip_connections": False},
        {"cell_clip": 2.0},
        {"cell_clip": None},
        {"projection_clip": 2.5},
        {"initial_state": "canonical"},
    ],
    ids=str,
)
def test_settings_that_change_vectors_but_no_weight_change_it(change: dict[str, Any]):
    assert fingerprint(build(replace(CONFIG, **change))) != NAME


def test_settings_that_are_equal_do_not():
    assert fingerprint(build(replace(CONFIG, cell_clip=3))) == NAME
    clips = [fingerprint(build(replace(CONFIG, cell_clip=clip))) for clip in (5, 5.0)]
    assert clips[0] == clips[1] != NAME
    pairs = fingerprint(build(replace(CONFIG, filters=[[1, 3], [2, 4]])))  # type: ignore[arg-type]
    assert pairs == NAME


def test_vocabularies_belong_to_it():
    marks = ["<bos>", "<eos>", "<oov>"]
    letters = [*marks, "<bow>", "<eow>", "<pad>", "a", "b"]
    sizes = {"token_encoder": "words_and_characters", "n_words": 5, "word_dim": 2, "n_characters": 8}
    config = replace(CONFIG, **sizes)
    words = [[*marks, "a", "b"], [*marks, "b", "a"], [*marks, "a", "c"]]
    names = {fingerprint(build(config, words=entries, characters=letters)) for entries in words}
    names.add(fingerprint(build(config, words=words[0], characters=[*letters[:-1], "c"])))
    assert len(names) == 4
    bilm = build(config, words=words[0], characters=letters)
    assert fingerprint(bilm_from_bytes(bilm_to_bytes(bilm))) == fingerprint(bilm)


def test_the_order_of_a_vocabulary_belongs_to_it():
    words = ["<S>", "</S>", "a"]
    config = BiLMConfig(token_encoder="words", n_words=3, projection=4, cells=6, n_layers=1)
    assert fingerprint(build(config, words=words)) != fingerprint(build(config, words=words[::-1]))
