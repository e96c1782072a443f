"""Our own format for token encoders that look words up: their vocabularies travel with the weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from spacy_elmo.errors import WeightsError
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.weights import native
from spacy_elmo.weights.native import bilm_from_bytes, bilm_to_bytes, load_bilm, save_bilm
from tests.weights.test_native import damaged, edit_config, edit_weights, same_weights

ODD = [
    "\u3000",
    "\u0085",
    "\u2028",
    "line\nbreak",
    "nul\0",
    "",
    '"',
    "\\",
    "\ud800",
    "\ufeff",
    "日本語",
    "\U0001f600" * 40,
]
WORDS = ["<S>", "</S>", "<UNK>", "<bos>", "<eos>", "<oov>", "a", "word", *ODD]
CHARACTERS = ["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>", *"aword", *"\u3000\u0085\u2028\n\0\ud800語"]
SENTENCES = [["a", "word", "naïve", *ODD], [], ["<S>"]]
SIZES = {"projection": 4, "cells": 6, "n_layers": 1}


def build(encoder: str) -> BiLM:
    torch.manual_seed(0)
    if encoder == "words":
        return BiLM(BiLMConfig(token_encoder="words", n_words=len(WORDS), **SIZES), {"words": WORDS})
    characters = {"character_dim": 3, "filters": ((1, 3), (2, 4)), "max_characters": 8, "n_highway": 1}
    tables = {"n_words": len(WORDS), "word_dim": 2, "n_characters": len(CHARACTERS)}
    config = BiLMConfig(token_encoder="words_and_characters", **characters, **tables, **SIZES)
    return BiLM(config, {"words": WORDS, "characters": CHARACTERS})


@pytest.fixture(params=["words", "words_and_characters"])
def bilm(request: pytest.FixtureRequest) -> BiLM:
    return build(request.param).requires_grad_(False)


@pytest.fixture
def saved(tmp_path: Path, bilm: BiLM) -> Path:
    save_bilm(bilm, tmp_path)
    return tmp_path


def assert_same(found: BiLM, bilm: BiLM) -> None:
    assert found.config == bilm.config
    assert found.encoder.vocabularies == bilm.encoder.vocabularies
    assert same_weights(found, bilm)
    assert torch.equal(found(SENTENCES).layers, bilm(SENTENCES).layers)


def test_round_trips_are_exact(saved: Path, bilm: BiLM) -> None:
    assert_same(load_bilm(saved), bilm)
    data = bilm_to_bytes(bilm)
    assert_same(bilm_from_bytes(data), bilm)
    assert bilm_to_bytes(bilm_from_bytes(data)) == data


def test_half_precision_leaves_words_alone(tmp_path: Path, bilm: BiLM) -> None:
    save_bilm(bilm, tmp_path, half=True)
    assert load_bilm(tmp_path).encoder.vocabularies == bilm.encoder.vocabularies
    stored = load_file(tmp_path / "model.safetensors")
    assert {name: tensor.dtype for name, tensor in stored.items() if tensor.dtype != torch.float16} == {
        f"vocabulary.{name}": torch.uint8 for name in bilm.encoder.vocabularies
    }


def test_a_model_over_bytes_has_no_vocabulary(tmp_path: Path) -> None:
    save_bilm(BiLM(BiLMConfig(character_dim=1, filters=((1, 1),), **SIZES)), tmp_path)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {torch.float32}
    edit_weights(tmp_path, lambda tensors: tensors.update({"vocabulary.words": as_tensor(b"[]")}))
    with pytest.raises(WeightsError, match="E102.*vocabular"):
        load_bilm(tmp_path)


def as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def without(words: list[Any], *changed: Any) -> Tensor:
    return as_tensor(json.dumps([*words[: len(words) - len(changed)], *changed]).encode())


@pytest.mark.parametrize(
    ("vocabulary", "named"),
    [
        (as_tensor(b'["\xff\xfe"]'), "decode"),
        (as_tensor(b"[" * 100_000), "recursion"),
        (as_tensor(b'["<S>", '), "Expecting"),
        (as_tensor(b'{"<S>": 0}'), "no list"),
        (as_tensor(b"null"), "no list"),
        (without(WORDS, "a"), "more than once"),
        (without(WORDS, 3), "type int"),
        (without(WORDS, []), "type list"),
        (as_tensor(json.dumps(WORDS[:-1]).encode()), "19 entries"),
        (as_tensor(json.dumps([*WORDS, "b"]).encode()), "21 entries"),
        (as_tensor(json.dumps(["x", *WORDS[1:-1], "y"]).encode()), "<S>"),
        (torch.ones(9), "float32"),
        (torch.ones(3, 3, dtype=torch.uint8), "uint8 \\(3, 3\\)"),
        (torch.ones((), dtype=torch.uint8), "uint8 \\(\\)"),
    ],
)
def test_a_vocabulary_that_is_none_or_does_not_fit(tmp_path: Path, vocabulary: Tensor, named: str) -> None:
    save_bilm(build("words"), tmp_path)
    edit_weights(tmp_path, lambda tensors: tensors.update({"vocabulary.words": vocabulary}))
    with pytest.raises(WeightsError, match=f"(?s)E102.*{named}"):
        load_bilm(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("vocabulary.words"),
        lambda tensors: tensors.update({"vocabulary.": as_tensor(b"[]")}),
        lambda tensors: tensors.update({"encoder.words": tensors["encoder.words"][1:]}),
        lambda tensors: tensors.update({"encoder.words": tensors["encoder.words"].to(torch.uint8)}),
    ],
)
def test_tensors_that_do_not_fit(saved: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    edit_weights(saved, change)
    with pytest.raises(WeightsError, match="E102"):
        load_bilm(saved)


@pytest.mark.parametrize("n_words", [19, 21, 2**24])
def test_a_config_of_another_size_allocates_nothing(saved: Path, n_words: int) -> None:
    edit_config(saved, n_words=n_words)
    with pytest.raises(WeightsError, match="E102"):
        load_bilm(saved)


def test_a_vocabulary_beyond_all_bounds_is_not_read(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_MOST_VOCABULARY_BYTES", 40)
    with pytest.raises(WeightsError, match="E102.*40"):
        load_bilm(saved)


def test_damaged_bytes_never_give_anything_but_a_weights_error(bilm: BiLM) -> None:
    data = bilm_to_bytes(bilm)
    refused = 0
    for seed in range(150):
        try:
            found = bilm_from_bytes(damaged(data, seed))
        except WeightsError:
            refused += 1
        else:
            assert all(parameter.isfinite().all() for parameter in found.parameters())
            found(SENTENCES)
    assert refused > 75
