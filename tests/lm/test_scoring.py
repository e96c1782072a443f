"""Log-probabilities of words: the same in any batch, for any length, and those of the definition."""

from __future__ import annotations

import pytest
import torch

from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.characters import BEGIN_SENTENCE, END_SENTENCE
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.scoring import SentenceScores, WordIds, scoring_problem, word_log_probabilities
from spacy_elmo.lm.softmax import build_head
from spacy_elmo.pretraining.evaluate import perplexity
from spacy_elmo.pretraining.vocabulary import Vocabulary

# As bilm-tf may order them, not as this project does.
WORDS = ["</S>", "<S>", "<UNK>", "the", "bank", "of", "river", "."]
SENTENCES = [["the", "bank"], [], ["the", "bank", "of", "the", "nowhere", "."], ["."]]


@pytest.fixture(scope="module", params=["zero", "canonical"])
def bilm(request: pytest.FixtureRequest) -> BiLM:
    torch.manual_seed(0)
    config = BiLMConfig(
        character_dim=4,
        filters=((1, 4), (2, 8)),
        max_characters=12,
        n_highway=1,
        projection=8,
        cells=12,
        initial_state=request.param,
    )
    return BiLM(config).requires_grad_(False)


@pytest.fixture(scope="module")
def head() -> torch.nn.Module:
    torch.manual_seed(1)
    return build_head({"kind": "full", "projection": 8, "n_words": len(WORDS)}).requires_grad_(False)


def scores_of(bilm: BiLM, head: torch.nn.Module, sentences: list[list[str]], words: int = 100) -> list[SentenceScores]:
    return word_log_probabilities(bilm, head, WordIds(WORDS).id_of, sentences, words)


def assert_same(left: list[SentenceScores], right: list[SentenceScores]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right):
        torch.testing.assert_close(one.words, other.words, atol=1e-5, rtol=0)
        torch.testing.assert_close(one.boundaries, other.boundaries, atol=1e-5, rtol=0)


def test_scores_are_those_of_words_read_one_after_another(bilm: BiLM, head: torch.nn.Module) -> None:
    """From the top layer of the biLM that reads the frame as words of the sentence, by the formula."""
    sentence = SENTENCES[2]
    (found,) = scores_of(bilm, head, [sentence])
    framed = [BEGIN_SENTENCE, *sentence, END_SENTENCE]
    layers, _ = bilm._run([framed], bilm.initial_state())
    ids = WordIds(WORDS).id_of
    top = layers[:, -1]
    for place in range(len(sentence)):
        left = torch.log_softmax(head.output(top[place, :8]), 0)[ids(sentence[place])]
        right = torch.log_softmax(head.output(top[place + 2, 8:]), 0)[ids(sentence[place])]
        torch.testing.assert_close(found.words[:, place], torch.stack([left, right]), atol=1e-5, rtol=0)
    end = torch.log_softmax(head.output(top[-2, :8]), 0)[0]
    begin = torch.log_softmax(head.output(top[1, 8:]), 0)[1]
    torch.testing.assert_close(found.boundaries, torch.stack([end, begin]), atol=1e-5, rtol=0)


def test_sentence_has_the_same_scores_in_any_batch(bilm: BiLM, head: torch.nn.Module) -> None:
    together = scores_of(bilm, head, SENTENCES)
    assert [found.words.shape for found in together] == [(2, 2), (2, 0), (2, 6), (2, 1)]
    assert_same(together, [scores_of(bilm, head, [sentence])[0] for sentence in SENTENCES])
    assert_same(together[::-1], scores_of(bilm, head, SENTENCES[::-1]))


@pytest.mark.parametrize("words", [1, 2, 5])
def test_windows_lose_no_context(bilm: BiLM, head: torch.nn.Module, words: int) -> None:
    assert_same(scores_of(bilm, head, SENTENCES, words), scores_of(bilm, head, SENTENCES))


def test_word_that_the_softmax_does_not_know_counts_as_unknown(bilm: BiLM, head: torch.nn.Module) -> None:
    ids = WordIds(WORDS)
    assert [ids.id_of(word) for word in ("nowhere", "<S>", "</S>", "<UNK>", "bank")] == [2, 2, 2, 2, 4]
    assert (ids.id_of(BEGIN_SENTENCE), ids.id_of(END_SENTENCE)) == (1, 0)
    assert [ids.knows(word) for word in ("nowhere", "<S>", "<UNK>", "bank")] == [False, False, False, True]
    first, second = scores_of(bilm, head, [["the", "nowhere"], ["the", "elsewhere"]])
    assert first.words[0, 1] == second.words[0, 1]
    assert first.words[1, 0] != second.words[1, 0], "as context its characters are read"


def test_sums_are_those_of_perplexity(bilm: BiLM, head: torch.nn.Module) -> None:
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", *WORDS[3:]])
    expected = perplexity(bilm, head, vocabulary, SENTENCES)
    found = word_log_probabilities(bilm, head, vocabulary.id_of, SENTENCES)
    sums = torch.stack([score.words.sum(1) + score.boundaries for score in found]).sum(0)
    assert torch.exp(-sums / expected.words).tolist() == pytest.approx([expected.forward, expected.backward], rel=1e-5)


def test_nothing_to_score(bilm: BiLM, head: torch.nn.Module) -> None:
    assert scores_of(bilm, head, []) == []


def test_what_is_missing_is_named(head: torch.nn.Module) -> None:
    assert scoring_problem(head, WORDS) is None
    assert "without a softmax" in (scoring_problem(None, WORDS) or "")
    assert "is not there" in (scoring_problem(head, None) or "")
    assert (scoring_problem(head, ["a", "</S>"]) or "").endswith("no <S> and no <UNK>")
