"""`token._.elmo_surprisal`: what it is, what becomes of it, and that the softmax travels with the pipeline."""

from __future__ import annotations

import math
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc, DocBin

from spacy_elmo.errors import ConfigError, PipelineError, WeightsError
from spacy_elmo.lm.scoring import WordIds, word_log_probabilities
from spacy_elmo.lm.softmax import build_head
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.weights.native import SOFTMAX_FILE, VOCABULARY_FILE, load_bilm, load_head, save_head
from tests.pipeline.round_trips import WAYS, through_bytes, through_disk

WORDS = ["<S>", "</S>", "<UNK>", "the", "bank", "of", "river", "."]
TEXT = "the bank of the river"

Bits = Callable[[list[str]], np.ndarray]


@pytest.fixture(scope="module", params=["full", "tied"])
def scored(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny biLM with a softmax and its vocabulary."""
    directory = tmp_path_factory.mktemp("scored") / "bilm"
    shutil.copytree(source, directory)
    torch.manual_seed(3)
    save_head(build_head({"kind": request.param, "projection": 8, "n_words": len(WORDS)}), directory)
    Vocabulary(WORDS).save(directory / VOCABULARY_FILE)
    return directory


def make(source: Path, *first: str, **settings: Any) -> Language:
    nlp = spacy.blank("en")
    for name in first:
        nlp.add_pipe(name)
    nlp.add_pipe("elmo", config={"surprisal": True, "model": {"source": str(source)}, **settings})
    return nlp


@pytest.fixture
def nlp(scored: Path) -> Language:
    return make(scored)


@pytest.fixture(scope="module")
def bits(scored: Path) -> Bits:
    """A function from the words of a sentence to their surprisal, straight from the model."""
    from spacy_elmo.lm.softmax import VocabularyEncoder

    bilm, head = load_bilm(scored), load_head(scored)
    head.bind(VocabularyEncoder(bilm, WORDS))

    def run(words: list[str]) -> np.ndarray:
        (found,) = word_log_probabilities(bilm, head, WordIds(WORDS).id_of, [words])
        return -found.words.T.numpy() / math.log(2)

    return run


def test_values_are_bits_from_the_left_and_from_the_right(nlp: Language, bits: Bits) -> None:
    doc = nlp(TEXT)
    expected = bits(TEXT.split())
    assert doc._.elmo_surprisal.shape == (5, 2) and doc._.elmo_surprisal.dtype == np.float32
    np.testing.assert_allclose(doc._.elmo_surprisal, expected, atol=1e-5)
    for token, values in zip(doc, expected):
        assert token._.elmo_surprisal.dtype == np.float32
        np.testing.assert_allclose(token._.elmo_surprisal, values, atol=1e-5)
    assert (expected > 0).all()


def test_each_sentence_by_itself(scored: Path, bits: Bits) -> None:
    doc = make(scored, "sentencizer")("the bank. of the river.")
    expected = np.concatenate([bits(["the", "bank", "."]), bits(["of", "the", "river", "."])])
    np.testing.assert_allclose(doc._.elmo_surprisal, expected, atol=1e-5)


def test_whitespace_has_zeros_and_is_not_read(nlp: Language, bits: Bits) -> None:
    doc = nlp("the  bank\n")
    expected = bits(["the", "bank"])
    np.testing.assert_allclose(doc._.elmo_surprisal, [expected[0], [0, 0], expected[1], [0, 0]], atol=1e-5)
    assert doc[1]._.elmo_surprisal.tolist() == [0, 0]


def test_token_in_two_windows_is_taken_from_where_its_vector_is(scored: Path, bits: Bits) -> None:
    spans = {"@misc": "spacy_elmo.strided_spans.v1", "window": 4, "stride": 2}
    doc = make(scored, model={"source": str(scored), "get_spans": spans})("the bank of the river .")
    first, second = bits("the bank of the".split()), bits("of the river .".split())
    np.testing.assert_allclose(doc._.elmo_surprisal, [*first[:3], *second[1:]], atol=1e-5)


def test_token_that_is_not_read_has_nan(scored: Path, bits: Bits) -> None:
    nlp = make(scored)
    elmo = nlp.get_pipe("elmo")
    elmo.model.attrs["reading"] = elmo.model.attrs["reading"].__class__(lambda docs: [[doc[:2]] for doc in docs], 100)
    doc = nlp("the bank of")
    np.testing.assert_allclose(doc._.elmo_surprisal, [*bits(["the", "bank"]), [np.nan] * 2], atol=1e-5)


def test_batches_change_nothing(nlp: Language) -> None:
    texts = [TEXT, "", "the bank", " ", "nowhere of the the bank river"]
    alone = [nlp(text)._.elmo_surprisal for text in texts]
    for order in (slice(None), slice(None, None, -1)):
        for doc, expected in zip(nlp.pipe(texts[order]), alone[order], strict=True):
            np.testing.assert_allclose(doc._.elmo_surprisal, expected, atol=1e-5)


def test_two_processes(nlp: Language) -> None:
    expected = [nlp(text)._.elmo_surprisal for text in (TEXT, "the bank")]
    for doc, values in zip(nlp.pipe([TEXT, "the bank"], n_process=2, batch_size=1), expected, strict=True):
        np.testing.assert_allclose(doc._.elmo_surprisal, values, atol=1e-5)


@pytest.mark.parametrize("store", ["mixed", "layers", "none"])
def test_it_is_kept_whatever_is_stored_of_the_vectors(scored: Path, bits: Bits, store: str) -> None:
    doc = make(scored, store=store, half=True)("the bank")
    np.testing.assert_allclose(doc._.elmo_surprisal, bits(["the", "bank"]), atol=1e-5)


def test_vectors_are_those_of_a_pipe_without(scored: Path, nlp: Language) -> None:
    np.testing.assert_allclose(nlp(TEXT)._.elmo, make(scored, surprisal=False)(TEXT)._.elmo, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("loaded", [False, True])
def test_softmax_travels_with_the_pipeline(
    scored: Path, tmp_path: Path, way: Callable[[Language, Path], Language], loaded: bool
) -> None:
    shutil.copytree(scored, tmp_path / "weights")
    nlp = make(tmp_path / "weights")
    expected = make(scored)(TEXT)._.elmo_surprisal
    if loaded:
        nlp(TEXT)
    again = way(nlp, tmp_path / "model")
    if loaded or way in (through_disk, through_bytes):
        shutil.rmtree(tmp_path / "weights")
    np.testing.assert_allclose(again(TEXT)._.elmo_surprisal, expected, atol=1e-5)


def test_source_in_initialize(scored: Path, tmp_path: Path, bits: Bits) -> None:
    nlp = make(tmp_path / "nowhere")
    nlp.get_pipe("elmo").initialize(list, source=str(scored))
    again = through_disk(nlp, tmp_path / "model")
    np.testing.assert_allclose(again("the bank")._.elmo_surprisal, bits(["the", "bank"]), atol=1e-5)


def test_weights_without_a_softmax(source: Path, tmp_path: Path) -> None:
    nlp = make(source)
    for run in (nlp.initialize, lambda: nlp("the bank"), nlp.to_bytes, lambda: nlp.to_disk(tmp_path)):
        with pytest.raises(PipelineError, match="E370.*'elmo'.*without a softmax.*surprisal = false"):
            run()


def test_pipeline_that_was_saved_without(scored: Path, tmp_path: Path) -> None:
    make(scored, surprisal=False).to_disk(tmp_path)
    assert not (tmp_path / "elmo" / "bilm" / SOFTMAX_FILE).exists()
    with pytest.raises(PipelineError, match="E370"):
        spacy.load(tmp_path, config={"components": {"elmo": {"surprisal": True}}})
    with pytest.raises(PipelineError, match="E371"):
        make(scored).from_bytes(make(scored, surprisal=False).to_bytes())("the")


def test_pipeline_that_was_saved_with_it_loads_without(nlp: Language, tmp_path: Path) -> None:
    nlp.to_disk(tmp_path)
    plain = spacy.load(tmp_path, config={"components": {"elmo": {"surprisal": False}}})
    np.testing.assert_allclose(plain(TEXT)._.elmo, nlp(TEXT)._.elmo, atol=1e-6)
    plain.to_disk(tmp_path)
    kept = {path.name for path in (tmp_path / "elmo" / "bilm").iterdir()}
    assert not kept & {SOFTMAX_FILE, VOCABULARY_FILE}, "what is not this pipe's must not lie beside its weights"


def test_config_of_before_still_loads(scored: Path, tmp_path: Path) -> None:
    nlp = make(scored, surprisal=False)
    expected = nlp(TEXT)._.elmo
    nlp.to_disk(tmp_path)
    config = (tmp_path / "config.cfg").read_text(encoding="utf-8")
    (tmp_path / "config.cfg").write_text(config.replace("surprisal = false\n", ""), encoding="utf-8")
    assert config.count("surprisal") == 1
    np.testing.assert_allclose(spacy.load(tmp_path)(TEXT)._.elmo, expected, atol=1e-6)


def test_other_weights_leave_no_softmax_behind(nlp: Language, source: Path) -> None:
    nlp(TEXT)
    nlp.get_pipe("elmo").bilm = load_bilm(source)
    with pytest.raises(PipelineError, match="E371"):
        nlp(TEXT)


def test_vocabulary_that_does_not_fit(scored: Path, tmp_path: Path) -> None:
    shutil.copytree(scored, tmp_path / "weights")
    Vocabulary([*WORDS, "more"]).save(tmp_path / "weights" / VOCABULARY_FILE)
    with pytest.raises(WeightsError, match="E178"):
        make(tmp_path / "weights")("the")
    make(scored).to_disk(tmp_path / "model")
    Vocabulary([*WORDS, "more"]).save(tmp_path / "model" / "elmo" / "bilm" / VOCABULARY_FILE)
    with pytest.raises(PipelineError, match="E370.*8 words.*9"):
        spacy.load(tmp_path / "model")


def test_setting_that_is_no_truth_value(scored: Path) -> None:
    with pytest.raises(ConfigError, match="E300.*surprisal.*'often'"):
        make(scored, surprisal="often")


def test_doc_without_it(scored: Path) -> None:
    doc = make(scored, surprisal=False)("the bank")
    for read in (lambda: doc._.elmo_surprisal, lambda: doc[0]._.elmo_surprisal):
        with pytest.raises(PipelineError, match="E372.*surprisal = true"):
            read()


def test_doc_bin_bytes_and_copies_keep_it(nlp: Language) -> None:
    doc = nlp(TEXT)
    expected = doc._.elmo_surprisal
    (binned,) = DocBin(store_user_data=True, docs=[doc]).get_docs(nlp.vocab)
    for again in (binned, Doc(nlp.vocab).from_bytes(doc.to_bytes()), doc.copy(), pickle.loads(pickle.dumps(doc))):
        np.testing.assert_array_equal(again._.elmo_surprisal, expected)
        np.testing.assert_array_equal(again[2]._.elmo_surprisal, expected[2])


def test_parts_and_joined_docs_keep_it(nlp: Language) -> None:
    first, second = nlp.pipe([TEXT, "nowhere the bank"])
    part = first[1:4].as_doc(copy_user_data=True)
    np.testing.assert_array_equal(part._.elmo_surprisal, first._.elmo_surprisal[1:4])
    joined = Doc.from_docs([first, second])
    both = np.concatenate([first._.elmo_surprisal, second._.elmo_surprisal])
    np.testing.assert_array_equal(joined._.elmo_surprisal, both)


def test_merged_token_has_the_sum_and_a_split_one_nan(nlp: Language) -> None:
    doc = nlp(TEXT)
    before = doc._.elmo_surprisal.copy()
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[0:2])
        retokenizer.split(doc[4], ["riv", "er"], [(doc[4], 1), doc[2]])
    np.testing.assert_allclose(doc[0]._.elmo_surprisal, before[:2].sum(0), atol=1e-5)
    np.testing.assert_array_equal(doc[2]._.elmo_surprisal, before[3])
    assert np.isnan(doc[3]._.elmo_surprisal).all() and np.isnan(doc._.elmo_surprisal[4]).all()


def test_token_that_was_never_scored(nlp: Language) -> None:
    doc = nlp("the bank")
    other = Doc(nlp.vocab, words=["my", "bank"], user_data=dict(doc.user_data))
    with pytest.raises(PipelineError, match="E373.*'my'"):
        other[0]._.elmo_surprisal


def test_empty_doc(nlp: Language) -> None:
    assert nlp("")._.elmo_surprisal.shape == (0, 2)


def test_scored_anew_it_is_replaced(nlp: Language) -> None:
    doc = nlp(TEXT)
    size = len(doc.user_data)
    assert len(nlp.get_pipe("elmo")(doc).user_data) == size == 2
