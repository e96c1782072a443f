from __future__ import annotations

import pytest
import torch

from spacy_elmo.errors import CorpusError
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.characters import BEGIN_SENTENCE, END_SENTENCE
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.softmax import AdaptiveSoftmax, FullSoftmax
from spacy_elmo.pretraining.evaluate import perplexity
from spacy_elmo.pretraining.objective import log_probabilities, prepare_batch
from spacy_elmo.pretraining.optimization import SeededDropout, build_optimizer, learning_rate
from spacy_elmo.pretraining.vocabulary import BEGIN_ID, END_ID, Vocabulary
from tests.pretraining.small_runs import CONFIG, CPU

SENTENCES = [["the", "cat", "sat"], ["a"], ["the", "dog", "<S>", "sat", "unheard"], ["cat", "cat"]]
VOCABULARY = Vocabulary.count([["the", "the", "cat", "sat", "a", "dog"]], 100)


def head_of(kind):
    if kind == "full":
        return FullSoftmax(CONFIG.projection, len(VOCABULARY))
    return AdaptiveSoftmax(CONFIG.projection, len(VOCABULARY), [4, 6], shrink=2.0)


@pytest.fixture(params=["zero", "canonical"])
def bilm(request):
    torch.manual_seed(1)
    return BiLM(BiLMConfig.from_dict({**CONFIG.to_dict(), "initial_state": request.param}))


def reference(bilm, head, sentence):
    """Scores of a sentence, forward and backward, in reading order: from the layers users see, and the boundary."""
    ids = [VOCABULARY.id_of(word) for word in sentence]
    top = bilm([sentence]).layers[:, -1]
    width = bilm.config.projection
    framed, _ = bilm._run([(BEGIN_SENTENCE, *sentence, END_SENTENCE)], bilm.initial_state())
    from_left = torch.cat([framed[:1, -1, :width], top[:, :width]])
    from_right = torch.cat([framed[-1:, -1, width:], top[:, width:].flip(0)])
    forward = head(from_left, torch.tensor([*ids, END_ID]))
    backward = head(from_right, torch.tensor([*ids[::-1], BEGIN_ID]))
    return forward, backward


@pytest.mark.parametrize("kind", ["full", "adaptive"])
def test_scores_are_those_of_the_layers_that_users_see(bilm, kind):
    head = head_of(kind)
    batch = prepare_batch(SENTENCES, VOCABULARY, CPU)
    scores = log_probabilities(bilm, head, batch)
    by_place = torch.empty_like(scores)
    by_place[0, batch.packing.forward] = scores[0]
    by_place[1, batch.packing.backward] = scores[1]
    by_sentence = by_place.split([len(sentence) + 1 for sentence in SENTENCES], 1)
    for sentence, found in zip(SENTENCES, by_sentence):
        forward, backward = reference(bilm, head, sentence)
        torch.testing.assert_close(found[0], forward)
        torch.testing.assert_close(found[1].flip(0), backward)


@pytest.mark.parametrize("kind", ["full", "adaptive"])
def test_gradients_reach_every_parameter(bilm, kind):
    head = head_of(kind)
    dropout = SeededDropout(0.1, torch.Generator().manual_seed(0))
    (-log_probabilities(bilm, head, prepare_batch(SENTENCES, VOCABULARY, CPU), dropout).mean()).backward()
    for name, parameter in [*bilm.named_parameters(), *head.named_parameters()]:
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_bfloat16_is_close(bilm):
    head = head_of("adaptive")
    batch = prepare_batch(SENTENCES, VOCABULARY, CPU)
    exact = log_probabilities(bilm, head, batch)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = log_probabilities(bilm, head, batch)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, atol=0.05, rtol=0.02)
    rounded.mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in bilm.parameters())


@pytest.mark.parametrize("batch_words", [1, 3, 100])
def test_perplexity_is_the_same_in_any_batch(bilm, batch_words):
    head = head_of("adaptive")
    found = perplexity(bilm, head, VOCABULARY, SENTENCES, batch_words)
    scores = [reference(bilm, head, sentence) for sentence in SENTENCES]
    forward, backward = (torch.cat(parts).double().mean().neg().exp().item() for parts in zip(*scores))
    assert found.forward == pytest.approx(forward, rel=1e-5)
    assert found.backward == pytest.approx(backward, rel=1e-5)
    assert found.joint == pytest.approx((forward * backward) ** 0.5, rel=1e-5)


def test_every_word_counts_and_one_boundary_a_sentence(bilm):
    assert perplexity(bilm, head_of("full"), VOCABULARY, SENTENCES).words == 3 + 1 + 5 + 2 + 4


def test_a_uniform_head_has_the_perplexity_of_the_vocabulary(bilm):
    head = head_of("full")
    torch.nn.init.zeros_(head.output.weight)
    found = perplexity(bilm, head, VOCABULARY, iter(SENTENCES))
    assert found[:3] == pytest.approx([len(VOCABULARY)] * 3, rel=1e-5)


def test_no_held_out_text(bilm):
    with pytest.raises(CorpusError, match="E203"):
        perplexity(bilm, head_of("full"), VOCABULARY, [])


def test_perplexity_after_a_step_uses_the_new_weights(bilm):
    """Vectors of words are cached without gradients, and the fused optimizer changes weights in place."""
    head = head_of("full")
    perplexity(bilm, head, VOCABULARY, SENTENCES)
    optimizer = build_optimizer(bilm.parameters(), 0.0)
    optimizer.param_groups[0]["lr"] = 0.1
    log_probabilities(bilm, head, prepare_batch(SENTENCES, VOCABULARY, CPU)).mean().backward()
    optimizer.step()
    after = perplexity(bilm, head, VOCABULARY, SENTENCES)
    bilm.clear_caches()
    assert after == perplexity(bilm, head, VOCABULARY, SENTENCES)


def test_dropout_keeps_the_mean_and_follows_its_generator():
    values = torch.ones(200, 200)
    dropped, again = (SeededDropout(0.25, torch.Generator().manual_seed(5))(values) for _ in range(2))
    assert torch.equal(dropped, again)
    assert (dropped == 0).float().mean() == pytest.approx(0.25, abs=0.01)
    assert dropped.mean() == pytest.approx(1, abs=0.02)


def test_learning_rate_warms_up_and_falls():
    rates = [learning_rate(step / 100, step, 1.0, 10) for step in range(101)]
    assert rates.index(max(rates)) in (9, 10)
    assert rates[0] == pytest.approx(0.1)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.02)
