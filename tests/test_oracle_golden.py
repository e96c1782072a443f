"""The oracle against the output of the original implementations: what everything else is compared with is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.golden import ATOL, MODELS, oracle_inputs, read_golden, read_text_vectors, read_token_vectors
from tests.oracle import BEGIN_SENTENCE, END_SENTENCE, OracleBiLM, boundary_ids, word_ids


def _vectors(oracle: OracleBiLM, words: list[str]) -> np.ndarray:
    """Vectors of words in a vocabulary file, where <S> and </S> are the boundaries."""
    size = oracle.config.max_characters
    boundaries = {"<S>": boundary_ids(BEGIN_SENTENCE, size), "</S>": boundary_ids(END_SENTENCE, size)}
    return np.array([oracle.word_vector(boundaries.get(word) or word_ids(word, size)) for word in words])


@pytest.mark.parametrize("model", MODELS)
def test_carried_state_matches_all_sentences(fixtures_dir: Path, model: str) -> None:
    golden = read_golden(fixtures_dir, model)
    oracle = OracleBiLM(*oracle_inputs(golden.options, golden.weights, "carry"))
    state = None
    compared = 0
    for batch, expected in zip(golden.batches, golden.top, strict=True):
        layers, state = oracle.embed_batch(batch, state)
        for output, top in zip(layers, expected, strict=True):
            np.testing.assert_allclose(output[:, -1], top, rtol=0, atol=ATOL)
            compared += 1
    assert compared == 30


@pytest.mark.parametrize("model", MODELS)
def test_zero_state_matches_only_the_first_batch(fixtures_dir: Path, model: str) -> None:
    golden = read_golden(fixtures_dir, model)
    oracle = OracleBiLM(*oracle_inputs(golden.options, golden.weights, "zero"))
    for sentence, top in zip(golden.batches[0], golden.top[0], strict=True):
        np.testing.assert_allclose(oracle.embed(sentence)[0][:, -1], top, rtol=0, atol=ATOL)
    assert np.abs(oracle.embed(golden.batches[3][0])[0][:, -1] - golden.top[3][0]).max() > 0.01


def test_wrong_skip_connections_are_far_off(fixtures_dir: Path) -> None:
    golden = read_golden(fixtures_dir, "allennlp")
    config, parameters = oracle_inputs(golden.options, golden.weights, "zero")
    config = type(config).from_dict({**config.to_dict(), "skip_connections": False})
    output, _ = OracleBiLM(config, parameters).embed(golden.batches[0][1])
    assert np.abs(output[:, -1] - golden.top[0][1]).max() > 0.5


def test_word_vectors_of_allennlp(fixtures_dir: Path) -> None:
    golden = read_golden(fixtures_dir, "allennlp")
    words, expected = read_token_vectors(fixtures_dir)
    oracle = OracleBiLM(*oracle_inputs(golden.options, golden.weights, "zero"))
    assert len(words) == 458
    np.testing.assert_allclose(_vectors(oracle, words), expected, rtol=0, atol=ATOL)


def test_word_vectors_of_fast_elmo(fixtures_dir: Path) -> None:
    folder = fixtures_dir / "pytorch-fast-elmo"
    words, expected = read_text_vectors(fixtures_dir)
    oracle = OracleBiLM(*oracle_inputs(folder / "options.json", folder / "lm_weights.hdf5", "zero"))
    assert len(words) == 17
    np.testing.assert_allclose(_vectors(oracle, words), expected, rtol=0, atol=ATOL)


def test_character_ids_of_bilm_tf() -> None:
    assert word_ids("th", 5) == [258, 116, 104, 259, 260]
    assert word_ids("thhhhh", 5) == [258, 116, 104, 104, 259]
    assert word_ids("Āt", 5) == [258, 196, 128, 116, 259]
    assert word_ids("", 3) == [258, 259, 260]
    assert word_ids("é", 3) == [258, 195, 259]
    assert boundary_ids(BEGIN_SENTENCE, 4) == [258, 256, 259, 260]
