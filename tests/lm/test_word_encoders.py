"""Token encoders with a table of words: against the oracle, and what they see of a word."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from spacy_elmo.errors import ConfigError
from spacy_elmo.lm import char_encoder, word_cache, word_encoders
from spacy_elmo.lm.bilm import CANONICAL_SENTENCE, BiLM
from spacy_elmo.lm.characters import BEGIN_SENTENCE, END_SENTENCE
from spacy_elmo.lm.config import BiLMConfig
from tests.oracle import OracleBiLM, parameter_shapes, random_parameters

WORDS = ["the", "<S>", "cat", "</S>", "sat", "\u3000", "\u0085", "line\nbreak", "", "The"]
UNKNOWN = [*WORDS, "<UNK>"]
ENTRIES = ["<oov>", "<bos>", "<eos>", "<pad>", "the", "cat", "日本", "abcdefgh", "\u3000", "\ufeffa"]
CHARACTERS = ["a", "c", "t", "h", "e", "日", "本", "\u3000", "<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>", "é"]
CHARACTER_SETTINGS: dict[str, Any] = {
    "character_dim": 3,
    "filters": ((1, 4), (2, 3), (3, 2)),
    "max_characters": 10,
    "n_highway": 1,
}
Vocabularies = dict[str, list[str]]


def _words(words: list[str] = UNKNOWN, **changes: Any) -> tuple[BiLMConfig, Vocabularies]:
    settings = {"projection": 5, "cells": 7, **changes}
    return BiLMConfig(token_encoder="words", n_words=len(words), **settings), {"words": words}


def _both(**changes: Any) -> tuple[BiLMConfig, Vocabularies]:
    sizes = {"n_words": len(ENTRIES), "word_dim": 3, "n_characters": len(CHARACTERS), "projection": 5, "cells": 7}
    settings = {**CHARACTER_SETTINGS, **sizes, **changes}
    config = BiLMConfig(token_encoder="words_and_characters", **settings)
    return config, {"words": ENTRIES, "characters": CHARACTERS}


VARIANTS: dict[str, tuple[BiLMConfig, Vocabularies]] = {
    "words": _words(),
    "words without unknown": _words(WORDS),
    "words and nothing": _words(["</S>", "<S>"], projection=1, cells=1, n_layers=1),
    "words, no LSTM projection, no skip connections": _words(cells=5, skip_connections=False, n_layers=3),
    "both": _both(),
    "both, tanh, two highways": _both(activation="tanh", n_highway=2),
    "both, no highways, no clips": _both(n_highway=0, cell_clip=None, projection_clip=None),
    "both, widths that agree": _both(projection=12),
    "both, three characters": _both(max_characters=3),
    "both, fifty characters": _both(max_characters=50, filters=((1, 4), (5, 3), (7, 3))),
}
SENTENCES: list[list[str]] = [
    ["The", "cat", "sat", "."],
    [],
    [""],
    ["<S>", "</S>", "<UNK>", "<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"],
    ["日本", "日本語", "本" * 8, "本" * 9, "本" * 49, "\U0001f600" * 13],
    ["abcdefgh", "abcdefghijk", "abcdefg", "é" * 8 + "a", "é" * 8 + "b"],
    ["\u3000", "\u0085", "line\nbreak", "\ufeffa", "\ud800", "a\udfffb", "\x00"],
    ["the", "cat", "the", "the", "cat"],
]
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def _pair(variant: str, dtype: str = "float64", initial_state: str = "zero") -> tuple[BiLM, OracleBiLM]:
    """A biLM in the given precision and the oracle with the same weights, always in float64."""
    config, vocabularies = VARIANTS[variant]
    config = BiLMConfig.from_dict({**config.to_dict(), "initial_state": initial_state})
    parameters = random_parameters(config, seed=7, dtype=dtype, lstm_scale=1.5)
    bilm = BiLM(config, vocabularies).to(getattr(torch, dtype))
    bilm.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in parameters.items()})
    exact = {name: values.astype("float64") for name, values in parameters.items()}
    return bilm, OracleBiLM(config, exact, CANONICAL_SENTENCE, vocabularies)


def _assert_same(found: list[Tensor], expected: list[np.ndarray], dtype: str = "float64") -> None:
    for output, right in zip(found, expected, strict=True):
        assert output.dtype == getattr(torch, dtype)
        np.testing.assert_allclose(output.detach().numpy(), right, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_have_the_agreed_names_and_shapes(variant: str) -> None:
    config, vocabularies = VARIANTS[variant]
    shapes = {name: tuple(values.shape) for name, values in BiLM(config, vocabularies).state_dict().items()}
    assert shapes == parameter_shapes(config)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("initial_state", ["zero", "canonical"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_sentences(variant: str, initial_state: str, dtype: str) -> None:
    bilm, oracle = _pair(variant, dtype, initial_state)
    start = oracle.initial_state()
    expected = [oracle.embed(sentence, start)[0] for sentence in SENTENCES]
    _assert_same(bilm(SENTENCES).split(), expected, dtype)
    bilm.requires_grad_(False)  # only frozen weights are cached
    with torch.inference_mode():
        _assert_same(bilm(SENTENCES).split(), expected, dtype)
        _assert_same(bilm(SENTENCES[::-1]).split(), expected[::-1], dtype)


@pytest.mark.parametrize("variant", ["words", "words without unknown", "both"])
def test_carried_state(variant: str) -> None:
    bilm, oracle = _pair(variant, initial_state="carry")
    expected_state, state = None, None
    for batch in (SENTENCES[:3], SENTENCES[3:]):
        expected, expected_state = oracle.embed_batch(batch, expected_state)
        output = bilm(batch, state=state)
        state = output.state
        _assert_same(output.split(), expected)
        assert state is not None
        _assert_same([state.cell, state.hidden], [expected_state.cell, expected_state.hidden])


def _vector(bilm: BiLM, word: Any) -> list[float]:
    values: list[float] = bilm.encode_words([word])[0].tolist()
    return values


def test_text_that_spells_a_mark_is_unknown() -> None:
    words, both = _pair("words")[0], _pair("both")[0]
    for mark in ("<S>", "</S>", "<UNK>"):
        assert _vector(words, mark) == _vector(words, "never seen")
    assert _vector(words, "<S>") != _vector(words, BEGIN_SENTENCE)
    assert _vector(words, "</S>") != _vector(words, END_SENTENCE)
    for mark, boundary in (("<bos>", BEGIN_SENTENCE), ("<eos>", END_SENTENCE)):
        assert _vector(both, mark) != _vector(both, boundary)
        assert both.encoder._word_row(mark) == ENTRIES.index("<oov>")


def test_unknown_words_are_zeros_without_an_entry_for_them() -> None:
    bilm = _pair("words without unknown")[0]
    assert _vector(bilm, "never seen") == [0] * 5
    assert _vector(bilm, WORDS[0]) != [0] * 5


def test_known_words_keep_their_own_vectors() -> None:
    bilm = _pair("words")[0]
    for row, word in enumerate(WORDS):
        if word not in ("<S>", "</S>"):
            assert _vector(bilm, word) == bilm.encoder.words[row].tolist()


def test_the_table_sees_no_more_of_a_word_than_the_characters_do() -> None:
    """Code points are cut, not bytes, and before the word is looked up."""
    bilm = _pair("both")[0]
    assert _vector(bilm, "abcdefghijk") == _vector(bilm, "abcdefgh")
    assert _vector(bilm, "abcdefg") != _vector(bilm, "abcdefgh")
    assert bilm.encoder.key("é" * 9) == "é" * 8
    assert bilm.encoder._word_row(bilm.encoder.key("abcdefghijk")) == ENTRIES.index("abcdefgh")


@pytest.mark.parametrize("variant", ["words", "both"])
def test_frozen_words_are_encoded_once_and_trainable_ones_each_time(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bilm = _pair(variant)[0]
    encoded: list[int] = []
    encode = bilm.encoder.encode
    monkeypatch.setattr(bilm.encoder, "encode", lambda keys: encoded.append(len(keys)) or encode(keys))
    with torch.no_grad():
        for _ in range(2):
            bilm.encode_words(["cat", "the"])
    assert encoded == [2, 2]
    bilm.requires_grad_(False)
    for _ in range(2):
        bilm.encode_words(["cat", "the"])
    assert encoded == [2, 2, 2]


@pytest.mark.parametrize("variant", ["words", "both"])
def test_changed_weights_are_seen(variant: str) -> None:
    bilm = _pair(variant)[0].requires_grad_(False)
    before = bilm.encode_words(["cat"])
    bilm.encoder.words.mul_(2)
    assert not torch.equal(bilm.encode_words(["cat"]), before)


@pytest.mark.parametrize(
    ("module", "bound", "value"),
    [(word_encoders, "_WORDS_PER_RUN", 1), (char_encoder, "_CHARACTERS_PER_RUN", 1), (word_cache, "WORDS_CACHED", 4)],
)
def test_bounds_of_memory_change_no_result(
    monkeypatch: pytest.MonkeyPatch, module: Any, bound: str, value: int
) -> None:
    bilm, oracle = _pair("both")
    monkeypatch.setattr(module, bound, value)
    bilm.requires_grad_(False)
    for sentences in (SENTENCES, SENTENCES[4:], SENTENCES):
        _assert_same(bilm(sentences).split(), [oracle.embed(sentence)[0] for sentence in sentences])


@pytest.mark.parametrize("variant", ["words", "words without unknown", "both, tanh, two highways"])
def test_gradients_of_all_parameters(variant: str) -> None:
    bilm = _pair(variant)[0]
    names = [name for name, _ in bilm.named_parameters()]

    def run(*tensors: Tensor) -> Tensor:
        return functional_call(bilm, dict(zip(names, tensors, strict=True)), ([["cat", "new"], ["the"]],)).layers

    inputs = tuple(parameter.detach().clone().requires_grad_() for parameter in bilm.parameters())
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True, atol=1e-8, rtol=1e-5)


@pytest.mark.parametrize("variant", ["words", "both"])
def test_copies_and_pickles_know_their_words(variant: str) -> None:
    bilm = _pair(variant)[0]
    expected = bilm(SENTENCES).layers
    for same in (copy.deepcopy(bilm), pickle.loads(pickle.dumps(bilm))):
        assert same.encoder.vocabularies == bilm.encoder.vocabularies
        assert torch.equal(same(SENTENCES).layers, expected)


@pytest.mark.parametrize(
    ("config", "vocabularies", "code"),
    [
        (BiLMConfig(), {"words": WORDS}, "E006.*characters.*words"),
        (_words()[0], {}, "E006"),
        (_words()[0], {"words": UNKNOWN, "characters": CHARACTERS}, "E006"),
        (_both()[0], {"words": ENTRIES}, "E006"),
        (_words()[0], {"words": WORDS}, "E007.*words.*10.*11"),
        (_both(n_characters=99)[0], {"words": ENTRIES, "characters": CHARACTERS}, "E007.*characters.*15.*99"),
        (_words()[0], {"words": [*WORDS, "the"]}, "E008.*'the' more than once"),
        (_words()[0], {"words": [*WORDS, 3]}, "E008.*int"),
        (_words()[0], {"words": [*WORDS, ["a"]]}, "E008.*list"),
        (_words(["cat", "<S>"])[0], {"words": ["cat", "<S>"]}, "E009.*</S>"),
        (_both()[0], {"words": [*ENTRIES[1:], "x"], "characters": CHARACTERS}, "E009.*words.*<oov>"),
        (_both()[0], {"words": ENTRIES, "characters": [*CHARACTERS[:-2], "x", "y"]}, "E009.*characters.*<eow>"),
    ],
)
def test_vocabularies_that_do_not_fit(config: BiLMConfig, vocabularies: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError, match=code):
        BiLM(config, vocabularies)


def test_configs_over_characters_are_written_as_ever() -> None:
    names = "character_dim filters max_characters activation n_highway projection cells n_layers skip_connections"
    clips = "cell_clip projection_clip initial_state"
    assert list(BiLMConfig().to_dict()) == f"{names} {clips}".split()


@pytest.mark.parametrize("variant", VARIANTS)
def test_configs_round_trip(variant: str) -> None:
    config = VARIANTS[variant][0]
    assert BiLMConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"token_encoder": "bytes"}, "token_encoder"),
        ({"token_encoder": ["words"]}, "token_encoder"),
        ({"n_words": 3}, "n_words.*left at 0"),
        ({"token_encoder": "words"}, "n_words"),
        ({"token_encoder": "words", "n_words": 2**24 + 1}, "n_words"),
        ({"token_encoder": "words", "n_words": 3, "word_dim": 5}, "word_dim"),
        ({"token_encoder": "words", "n_words": 3, "n_highway": 1}, "n_highway.*left at 2"),
        ({"token_encoder": "words_and_characters", "n_words": 9, "n_characters": 9}, "word_dim"),
        ({"token_encoder": "words_and_characters", "n_words": 9, "word_dim": 9}, "n_characters"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"E001.*{named}"):
        BiLMConfig(**settings)
