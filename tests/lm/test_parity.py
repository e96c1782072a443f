"""BiLM against the oracle on random weights: every variant, every initial state, both precisions, both paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.lm import char_encoder, lstm, word_cache
from spacy_elmo.lm.bilm import CANONICAL_SENTENCE, BiLM, BiLMState
from spacy_elmo.lm.config import BiLMConfig
from tests.oracle import OracleBiLM, OracleState, parameter_shapes, random_parameters

BASE: dict[str, Any] = {
    "character_dim": 3,
    "filters": ((1, 4), (2, 3), (3, 2)),
    "max_characters": 10,
    "n_highway": 1,
    "projection": 5,
    "cells": 7,
    "n_layers": 2,
    "cell_clip": 3.0,
    "projection_clip": 3.0,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "tanh": {"activation": "tanh"},
    "no highways": {"n_highway": 0},
    "two highways": {"n_highway": 2},
    "three highways": {"n_highway": 3, "activation": "tanh"},
    "no character projection": {"projection": 9},
    "no LSTM projection": {"cells": 5},
    "no projection at all": {"projection": 9, "cells": 9, "n_highway": 0},
    "fewer cells than projection": {"cells": 2},
    "no skip connections": {"skip_connections": False},
    "no skip connections, no clips": {"skip_connections": False, "cell_clip": None, "projection_clip": None},
    "no clips": {"cell_clip": None, "projection_clip": None},
    "cell clip only": {"cell_clip": 0.4, "projection_clip": None},
    "projection clip only": {"cell_clip": None, "projection_clip": 0.2},
    "clips that bind": {"cell_clip": 0.4, "projection_clip": 0.2},
    "clips that bind, no LSTM projection": {"cells": 5, "cell_clip": 0.4, "projection_clip": 0.2},
    "one layer": {"n_layers": 1},
    "four layers": {"n_layers": 4},
    "four layers, no skip connections": {"n_layers": 4, "skip_connections": False},
    "odd filters": {"filters": ((7, 1), (1, 1), (4, 5), (4, 2))},
    "filter as wide as a word": {"filters": ((10, 3), (1, 2))},
    "three characters": {"filters": ((1, 4), (2, 3), (3, 2)), "max_characters": 3},
    "four characters": {"filters": ((2, 6),), "max_characters": 4},
    "fifty characters": {"filters": ((1, 4), (5, 3), (7, 3)), "max_characters": 50},
    "one of everything": {"character_dim": 1, "filters": ((1, 1),), "projection": 1, "cells": 1, "n_layers": 1},
}
SENTENCES: list[list[str]] = [
    ["The", "cat", "sat", "."],
    [],
    [""],
    ["<S>", "</S>", "<UNK>", "a"],
    ["é" * 30, "日本語" * 9, "xé" * 30, "\U0001f600" * 13],
    ["\ud800", "a\udfffb", "ab", ""],
    ["x" * 8, "x" * 9, "x" * 47, "x" * 48, "x" * 49, "x" * 200],
    ["\x00", " ", "\n", "\x7f"],
    ["The", "the", "The", "the", "The", "cat", "sat", "on", "the", "The"],
]
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def _config(variant: str, initial_state: str = "zero") -> BiLMConfig:
    return BiLMConfig(**{**BASE, **VARIANTS[variant], "initial_state": initial_state})


def _pair(config: BiLMConfig, dtype: str = "float64") -> tuple[BiLM, OracleBiLM]:
    """A biLM in the given precision and the oracle with the same weights, always in float64."""
    parameters = random_parameters(config, seed=7, dtype=dtype, lstm_scale=1.5)
    bilm = BiLM(config).to(getattr(torch, dtype))
    bilm.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in parameters.items()})
    exact = {name: values.astype("float64") for name, values in parameters.items()}
    return bilm, OracleBiLM(config, exact, CANONICAL_SENTENCE)


def _assert_same(found: Any, expected: Sequence[np.ndarray], dtype: str) -> None:
    for output, right in zip(found, expected, strict=True):
        assert tuple(output.shape) == right.shape
        assert output.dtype == getattr(torch, dtype)
        np.testing.assert_allclose(output.detach().numpy(), right, rtol=0, atol=TOLERANCE[dtype])


def _assert_same_state(found: BiLMState, expected: OracleState, dtype: str) -> None:
    _assert_same([found.cell, found.hidden], [expected.cell, expected.hidden], dtype)


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_have_the_agreed_names_and_shapes(variant: str) -> None:
    config = _config(variant)
    shapes = {name: tuple(values.shape) for name, values in BiLM(config).state_dict().items()}
    assert shapes == parameter_shapes(config)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("initial_state", ["zero", "canonical"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_sentences(variant: str, initial_state: str, dtype: str) -> None:
    bilm, oracle = _pair(_config(variant, initial_state), dtype)
    start = oracle.initial_state()
    expected = [oracle.embed(sentence, start)[0] for sentence in SENTENCES]
    with_graph = bilm(SENTENCES)
    bilm.requires_grad_(False)  # only frozen weights are cached
    with torch.inference_mode():
        without = bilm(SENTENCES)
    assert with_graph.layers.requires_grad and not without.layers.requires_grad
    assert with_graph.lengths == without.lengths == [len(sentence) for sentence in SENTENCES]
    assert with_graph.state is None and without.state is None
    _assert_same(with_graph.split(), expected, dtype)
    _assert_same(without.split(), expected, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("variant", VARIANTS)
def test_carried_state(variant: str, dtype: str) -> None:
    bilm, oracle = _pair(_config(variant, "carry"), dtype)
    nothing: list[str] = []
    batches = [SENTENCES[:3], SENTENCES[3:5], SENTENCES[5:], [nothing]]
    expected_state, state, graph_state = None, None, None
    for batch in batches:
        expected, expected_state = oracle.embed_batch(batch, expected_state)
        bilm.requires_grad_(False)  # only frozen weights are cached
        with torch.no_grad():
            output = bilm(batch, state=state)
        with_graph = bilm(batch, state=graph_state)
        state, graph_state = output.state, with_graph.state
        assert state is not None and graph_state is not None
        _assert_same(output.split(), expected, dtype)
        _assert_same(with_graph.split(), expected, dtype)
        _assert_same_state(state, expected_state, dtype)
        _assert_same_state(graph_state, expected_state, dtype)


@pytest.mark.parametrize("variant", ["clips that bind", "clips that bind, no LSTM projection"])
def test_clips_bind_in_these_variants(variant: str) -> None:
    """Or else the comparisons above would say nothing about clips."""
    config = _config(variant)
    _, oracle = _pair(config)
    _, state = oracle.embed(SENTENCES[-1])
    assert config.cell_clip in np.abs(state.cell)
    assert (config.projection_clip in np.abs(state.hidden)) == config.has_lstm_projection


@pytest.mark.parametrize("initial_state", ["zero", "canonical"])
def test_a_state_handed_in_replaces_the_initial_state(initial_state: str) -> None:
    bilm, oracle = _pair(_config("base", initial_state))
    before, expected_before = bilm(SENTENCES, state=_torch_state(oracle.zero_state())), oracle.embed_batch(SENTENCES)
    _assert_same(before.split(), expected_before[0], "float64")
    after = bilm(SENTENCES, state=before.state)
    expected, state = oracle.embed_batch(SENTENCES, expected_before[1])
    _assert_same(after.split(), expected, "float64")
    assert after.state is not None
    _assert_same_state(after.state, state, "float64")


def _torch_state(state: OracleState) -> BiLMState:
    return BiLMState(torch.from_numpy(state.cell), torch.from_numpy(state.hidden))


@pytest.mark.parametrize("initial_state", ["zero", "canonical", "carry"])
def test_nothing_but_empty_sentences(initial_state: str) -> None:
    bilm, oracle = _pair(_config("base", initial_state))
    batches: list[list[list[str]]] = [[], [[]], [[], []]]
    for sentences in batches:
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                output = bilm(sentences)
            assert tuple(output.layers.shape) == (0, 3, 10)
            assert output.lengths == [0] * len(sentences)
            if initial_state == "carry":
                assert output.state is not None
                _assert_same_state(output.state, oracle.embed_batch(sentences)[1], "float64")


@pytest.mark.parametrize("initial_state", ["zero", "canonical", "carry"])
@pytest.mark.parametrize("max_batch_words", [1, 2, 3, 7, 20])
def test_small_batches_change_no_result(initial_state: str, max_batch_words: int) -> None:
    bilm, oracle = _pair(_config("clips that bind", initial_state))
    start = oracle.initial_state()
    expected = [oracle.embed(sentence, start)[0] for sentence in SENTENCES]
    bilm.requires_grad_(False)  # only frozen weights are cached
    with torch.no_grad():
        _assert_same(bilm(SENTENCES, max_batch_words=max_batch_words).split(), expected, "float64")
    _assert_same(bilm(SENTENCES, max_batch_words=max_batch_words).split(), expected, "float64")


@pytest.mark.parametrize(
    ("module", "bound", "value"),
    [
        (lstm, "_GATES_AHEAD", 1),
        (lstm, "_GATES_AHEAD", 100),
        (lstm, "_GATES_OF_WORDS", 0),
        (char_encoder, "_CHARACTERS_PER_RUN", 1),
        (char_encoder, "_CHARACTERS_PER_RUN", 40),
        (word_cache, "WORDS_CACHED", 4),
        (word_cache, "WORDS_CACHED", 36),
    ],
)
def test_bounds_of_memory_change_no_result(
    monkeypatch: pytest.MonkeyPatch, module: Any, bound: str, value: int
) -> None:
    bilm, oracle = _pair(_config("clips that bind", "canonical"))
    monkeypatch.setattr(module, bound, value)
    start = oracle.initial_state()
    bilm.requires_grad_(False)  # only frozen weights are cached
    with torch.no_grad():
        for sentences in (SENTENCES, SENTENCES[4:], [["new", "words"], ["The", "rest"]], SENTENCES):
            expected = [oracle.embed(sentence, start)[0] for sentence in sentences]
            _assert_same(bilm(sentences).split(), expected, "float64")


def test_long_sentence_among_short_ones() -> None:
    sentences = [SENTENCES[0], [f"word{i % 37}" for i in range(700)], SENTENCES[3]]
    bilm, oracle = _pair(_config("clips that bind", "canonical"))
    start = oracle.initial_state()
    expected = [oracle.embed(sentence, start)[0] for sentence in sentences]
    bilm.requires_grad_(False)  # only frozen weights are cached
    with torch.no_grad():
        _assert_same(bilm(sentences).split(), expected, "float64")
        _assert_same(bilm(sentences, max_batch_words=64).split(), expected, "float64")


def test_words_without_context() -> None:
    bilm, oracle = _pair(_config("fifty characters"))
    words = [word for sentence in SENTENCES for word in sentence]
    expected = [oracle.embed([word])[0][0, 0, : oracle.config.projection] for word in words]
    bilm.requires_grad_(False)  # only frozen weights are cached
    with torch.no_grad():
        _assert_same(bilm.encode_words(words), expected, "float64")
        _assert_same(bilm.encode_words(words[::-1]), expected[::-1], "float64")
    _assert_same(bilm.encode_words(words), expected, "float64")


@pytest.mark.parametrize("initial_state", ["zero", "canonical"])
def test_changed_weights_are_seen(initial_state: str) -> None:
    """Neither a cached word vector nor a cached start may outlive the weights that it came from."""
    config = _config("base", initial_state)
    bilm, _ = _pair(config)
    bilm.requires_grad_(False)  # only frozen weights are cached
    with torch.no_grad():
        bilm(SENTENCES)
        parameters = random_parameters(config, seed=8, dtype="float64")
        bilm.load_state_dict({name: torch.from_numpy(values) for name, values in parameters.items()})
        found = bilm(SENTENCES)
    oracle = OracleBiLM(config, parameters, CANONICAL_SENTENCE)
    _assert_same(found.split(), [oracle.embed(sentence)[0] for sentence in SENTENCES], "float64")


def test_a_fused_optimizer_is_seen() -> None:
    """A fused step changes weights without a trace in torch's version counters."""
    bilm, _ = _pair(_config(next(iter(VARIANTS))))
    optimizer = torch.optim.AdamW(bilm.parameters(), lr=0.1, fused=True)
    with torch.no_grad():
        before = bilm([["a", "word"]]).layers
    bilm([["a", "word"]]).layers.sum().backward()
    optimizer.step()
    with torch.no_grad():
        after = bilm([["a", "word"]]).layers
    torch.testing.assert_close(after, bilm([["a", "word"]]).layers.detach())
    assert (after - before).abs().max() > 0.01
