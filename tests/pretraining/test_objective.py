from __future__ import annotations

import pytest
import torch

from spacy_elmo.errors import CorpusError
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.characters import BEGIN_SENTENCE, END_SENTENCE
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.softmax import AdaptiveSoftmax, FullSoftmax
from spacy_elmo.pretraining.batches import Window
from spacy_elmo.pretraining.dropout import SeededDropout
from spacy_elmo.pretraining.evaluate import combined, perplexity
from spacy_elmo.pretraining.objective import log_probabilities, prepare_sentences, prepare_windows
from spacy_elmo.pretraining.optimization import build_optimizer, learning_rate, set_rate
from spacy_elmo.pretraining.settings import TrainingSettings
from spacy_elmo.pretraining.vocabulary import BEGIN_ID, END_ID, Vocabulary
from tests.pretraining.small_runs import CONFIG

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
    batch = prepare_sentences(SENTENCES, VOCABULARY)
    scores, _ = log_probabilities(bilm, head, batch)
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
    scores, _ = log_probabilities(bilm, head, prepare_sentences(SENTENCES, VOCABULARY), None, dropout)
    (-scores.mean()).backward()
    for name, parameter in [*bilm.named_parameters(), *head.named_parameters()]:
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_bfloat16_is_close(bilm):
    head = head_of("adaptive")
    batch = prepare_sentences(SENTENCES, VOCABULARY)
    exact, _ = log_probabilities(bilm, head, batch)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, _ = log_probabilities(bilm, head, batch)
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
    optimizer = build_optimizer(bilm, head, TrainingSettings())
    set_rate(optimizer, 0.1)
    log_probabilities(bilm, head, prepare_sentences(SENTENCES, VOCABULARY))[0].mean().backward()
    optimizer.step()
    after = perplexity(bilm, head, VOCABULARY, SENTENCES)
    bilm.clear_caches()
    assert after == perplexity(bilm, head, VOCABULARY, SENTENCES)


WINDOWS = [
    Window([BEGIN_SENTENCE, "the", "cat"], ["the", "cat", END_SENTENCE], [END_SENTENCE, "cat", "the"], ["cat", "the", BEGIN_SENTENCE]),
    Window(["a", BEGIN_SENTENCE, "dog"], [END_SENTENCE, "dog", "sat"], ["a", END_SENTENCE, "sat"], [BEGIN_SENTENCE, "sat", "dog"]),
]  # fmt: skip


def test_windows_go_on_where_the_streams_were(bilm):
    """Two windows in a row score as one long one."""
    head = head_of("full")
    longer = [Window(*(first + second for first, second in zip(*pair))) for pair in zip(WINDOWS, WINDOWS[::-1])]
    zero = bilm._zero_state(2)
    whole, end = log_probabilities(bilm, head, prepare_windows(longer, VOCABULARY), zero)
    first, between = log_probabilities(bilm, head, prepare_windows(WINDOWS, VOCABULARY), zero)
    second, after = log_probabilities(bilm, head, prepare_windows(WINDOWS[::-1], VOCABULARY), between)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    for one, other in zip(after, end):
        torch.testing.assert_close(one, other)


def test_a_window_of_one_sentence_scores_as_the_sentence(bilm):
    head = head_of("full")
    batch = prepare_windows(WINDOWS[:1], VOCABULARY)
    of_window, _ = log_probabilities(bilm, head, batch, bilm.initial_state())
    of_sentence, _ = log_probabilities(bilm, head, prepare_sentences([["the", "cat"]], VOCABULARY))
    torch.testing.assert_close(of_window, of_sentence)
    assert batch.n_words == 2 and batch.places == 3


def test_perplexities_of_domains_add_up(bilm):
    head = head_of("full")
    parts = [perplexity(bilm, head, VOCABULARY, part) for part in (SENTENCES[:1], SENTENCES[1:])]
    assert combined(parts) == pytest.approx(perplexity(bilm, head, VOCABULARY, SENTENCES), rel=1e-6)


def rates_of(**settings):
    settings = TrainingSettings(peak_rate=1.0, warmup_steps=10, **settings)
    return [learning_rate(step / 100, step, settings) for step in range(101)]


def test_learning_rate_warms_up_and_falls():
    rates = rates_of(schedule="cosine")
    assert rates.index(max(rates)) in (9, 10)
    assert rates[0] == pytest.approx(0.1, rel=0.01)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.02)


def test_a_constant_learning_rate():
    rates = rates_of(schedule="constant")
    assert rates[4] == 0.5 and set(rates[10:]) == {1.0}


def test_lower_layers_learn_more_slowly(bilm):
    optimizer = build_optimizer(bilm, head_of("full"), TrainingSettings(layer_rate_decay=0.5))
    set_rate(optimizer, 1.0)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.25, 0.5, 1.0]
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len([*bilm.parameters()]) + 2
