"""Sampling against its definitions: draws one by one in numpy, the estimate against what it estimates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_elmo.errors import ConfigError, ElmoError
from spacy_elmo.lm import sampled_softmax
from spacy_elmo.lm.softmax import FullSoftmax, SampledSoftmax, build_head
from spacy_elmo.lm.word_sampling import WordSampler, usable_counts

PROJECTION, N_WORDS, N_SAMPLES, PLACES = 6, 50, 12, 9
DISTRIBUTIONS = ["log-uniform", "uniform", "unigram"]
COUNTS = [1 + (7 * number) % 30 for number in range(N_WORDS)]


def probabilities(distribution: str) -> np.ndarray:
    ids = np.arange(N_WORDS)
    weights = {"log-uniform": np.log((ids + 2) / (ids + 1)), "uniform": np.ones(N_WORDS), "unigram": np.array(COUNTS)}
    return weights[distribution] / weights[distribution].sum()


def sampler_of(distribution: str) -> tuple[WordSampler, Tensor]:
    return WordSampler(distribution, N_WORDS), usable_counts(torch.tensor(COUNTS))


def head_of(distribution: str, **changes: int) -> SampledSoftmax:
    torch.manual_seed(3)
    head = SampledSoftmax(PROJECTION, N_WORDS, changes.get("n_samples", N_SAMPLES), distribution)
    torch.nn.init.normal_(head.output.bias)
    head.set_counts(COUNTS)
    return head.double()


@pytest.fixture
def hidden() -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(PLACES, PROJECTION, dtype=torch.float64, generator=generator).requires_grad_()


@pytest.fixture
def words() -> Tensor:
    """Frequent ones, which a sample is likely to hold, twice, and rare ones."""
    return torch.tensor([0, 0, 1, 2, 5, 17, 30, 48, 49])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_draws_follow_the_distribution(distribution: str) -> None:
    sampler, counts = sampler_of(distribution)
    generator = torch.Generator().manual_seed(0)
    first = torch.stack([sampler.draw(2, generator, counts).words[0] for _ in range(20_000)])
    found = np.bincount(first.numpy(), minlength=N_WORDS) / len(first)
    assert np.abs(found - probabilities(distribution)).max() < 0.01
    assert np.abs(found - probabilities(distribution)).sum() < 0.08


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("number", [1, 12, 40])
def test_draws_are_those_taken_one_by_one(distribution: str, number: int) -> None:
    sampler, counts = sampler_of(distribution)
    draw = sampler.draw(number, torch.Generator().manual_seed(8), counts)
    generator, bounds = torch.Generator().manual_seed(8), probabilities(distribution).cumsum()
    met: list[int] = []
    tries = 0
    while len(met) < number:
        for point in torch.rand(4 * number, generator=generator, dtype=torch.float64).tolist():
            if len(met) < number:
                tries += 1
                word = int((bounds <= point).sum())
                met += [word] if word not in met else []
    assert (draw.words.tolist(), draw.tries) == (met, tries)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_expected_counts_are_how_often_words_are_drawn(distribution: str) -> None:
    sampler, counts = sampler_of(distribution)
    generator = torch.Generator().manual_seed(1)
    every = torch.arange(N_WORDS)
    drawn, expected = np.zeros(N_WORDS), np.zeros(N_WORDS)
    for _ in range(4000):
        draw = sampler.draw(N_SAMPLES, generator, counts)
        drawn[draw.words.numpy()] += 1 / 4000
        expected += sampler.log_expected(every, draw.tries, counts).exp().numpy() / 4000
    # The number of tries is itself a matter of chance, which the formula does not know: it is near, not exact.
    assert np.abs(drawn - expected).max() < 0.03
    assert expected.sum() == pytest.approx(N_SAMPLES, rel=0.01)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_estimate_is_its_formula(distribution: str, hidden: Tensor, words: Tensor) -> None:
    """TensorFlow's sampled softmax, place by place."""
    head = head_of(distribution)
    found = head.training_log_probabilities(hidden, words, torch.Generator().manual_seed(5))
    sampler, counts = sampler_of(distribution)
    draw = sampler.draw(N_SAMPLES, torch.Generator().manual_seed(5), counts)
    expected_counts = 1 - (1 - probabilities(distribution)) ** draw.tries
    weight, bias = head.output.weight.detach().numpy(), head.output.bias.detach().numpy()
    corrected = hidden.detach().numpy() @ weight.T + bias - np.log(expected_counts)
    for place, word in enumerate(words.tolist()):
        others = [other for other in draw.words.tolist() if other != word]
        total = np.exp(corrected[place, [word, *others]]).sum()
        assert found[place].item() == pytest.approx(corrected[place, word] - np.log(total), abs=1e-5)
    assert set(draw.words.tolist()) & set(words.tolist()), "no accidental hit was tested"


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_sum_over_samples_estimates_the_sum_over_the_vocabulary(distribution: str, hidden: Tensor) -> None:
    """What the correction is for: Σ exp(logit) / expected count over samples has the mean Σ exp(logit) over all words."""
    head = head_of(distribution)
    logits = (hidden.detach() @ head.output.weight.T + head.output.bias).detach()
    sampler, counts = sampler_of(distribution)
    generator, total = torch.Generator().manual_seed(2), torch.zeros(PLACES, dtype=torch.float64)
    for _ in range(4000):
        draw = sampler.draw(N_SAMPLES, generator, counts)
        log_expected = sampler.log_expected(draw.words, draw.tries, counts)
        total += (logits[:, draw.words] - log_expected).exp().sum(1) / 4000
    # Not exactly the mean, since the number of tries is a matter of chance too.
    torch.testing.assert_close(total, logits.exp().sum(1), rtol=0.06, atol=0)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_mean_gradient_comes_near_that_of_the_full_softmax(distribution: str, hidden: Tensor, words: Tensor) -> None:
    def gradient(head: SampledSoftmax, sampled: bool, generator: torch.Generator) -> Tensor:
        head.zero_grad()
        score = head.training_log_probabilities(hidden, words, generator) if sampled else head(hidden, words)
        return torch.autograd.grad(score.mean(), head.output.weight)[0]

    generator = torch.Generator().manual_seed(6)
    errors = []
    for n_samples in (5, 25, 45, 49):
        head = head_of(distribution, n_samples=n_samples)
        head.sampling.takes_all = False
        exact = gradient(head, False, generator)
        mean = torch.stack([gradient(head, True, generator) for _ in range(200)]).mean(0)
        errors.append(((mean - exact).norm() / exact.norm()).item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02


def test_gradients_are_right(hidden: Tensor, words: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_softmax, "_LOGITS_AT_A_TIME", 4 * N_SAMPLES)
    head = head_of("log-uniform")

    def run(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        parameters = {"output.weight": weight, "output.bias": bias}
        generator = torch.Generator().manual_seed(5)
        arguments = (hidden, words, generator)
        return torch.func.functional_call(_Training(head), {f"head.{k}": v for k, v in parameters.items()}, arguments)

    inputs = [hidden, *(part.detach().clone().requires_grad_() for part in (head.output.weight, head.output.bias))]
    assert torch.autograd.gradcheck(run, inputs, atol=1e-6)


class _Training(torch.nn.Module):
    def __init__(self, head: SampledSoftmax) -> None:
        super().__init__()
        self.head = head

    def forward(self, *arguments: object) -> Tensor:
        return self.head.training_log_probabilities(*arguments)


def test_words_that_are_not_needed_get_no_gradient(hidden: Tensor, words: Tensor) -> None:
    head = head_of("log-uniform")
    head.training_log_probabilities(hidden, words, torch.Generator().manual_seed(5)).sum().backward()
    drawn = sampler_of("log-uniform")[0].draw(N_SAMPLES, torch.Generator().manual_seed(5)).words
    touched = head.output.weight.grad.abs().sum(1).nonzero().squeeze(1)
    assert set(touched.tolist()) == set(drawn.tolist()) | set(words.tolist())


def test_exact_scores_are_those_of_a_full_softmax_trained_or_not(hidden: Tensor, words: Tensor) -> None:
    head = head_of("log-uniform")
    full = FullSoftmax(PROJECTION, N_WORDS).double()
    full.load_state_dict(head.state_dict())
    assert torch.equal(head(hidden, words), full(hidden, words))


def test_the_generator_decides_and_nothing_else(hidden: Tensor, words: Tensor) -> None:
    head = head_of("log-uniform")
    before = torch.get_rng_state()
    one, same, other = (
        head.training_log_probabilities(hidden, words, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(before, torch.get_rng_state())


def test_most_of_a_vocabulary_is_not_drawn_but_used_in_full(hidden: Tensor, words: Tensor) -> None:
    head = head_of("log-uniform", n_samples=N_WORDS // 2 + 1)
    assert torch.equal(head.training_log_probabilities(hidden, words), head(hidden, words))


def test_all_that_was_drawn_may_be_the_true_word() -> None:
    head = SampledSoftmax(PROJECTION, 2, 1)
    hidden = torch.randn(40, PROJECTION, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    drawn = head.sampling.sampler.draw(1, torch.Generator().manual_seed(0)).words
    score = head.training_log_probabilities(hidden, drawn.expand(40), generator)
    score.sum().backward()
    assert torch.equal(score, torch.zeros(40))
    assert torch.equal(hidden.grad, torch.zeros_like(hidden))


def test_bfloat16_is_close(hidden: Tensor, words: Tensor) -> None:
    head = head_of("log-uniform").float()
    inputs = hidden.detach().float().requires_grad_()
    exact = head.training_log_probabilities(inputs, words, torch.Generator().manual_seed(5))
    with torch.autocast("cpu", torch.bfloat16):
        rounded = head.training_log_probabilities(inputs, words, torch.Generator().manual_seed(5))
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, atol=0.05, rtol=0.02)
    (expected,) = torch.autograd.grad(exact.sum(), inputs)
    (found,) = torch.autograd.grad(rounded.sum(), inputs)
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)


def test_no_places() -> None:
    head = head_of("log-uniform")
    nothing = torch.zeros(0, dtype=torch.long)
    assert head.training_log_probabilities(torch.zeros(0, PROJECTION).double(), nothing).shape == (0,)


def test_settings_build_the_same_head() -> None:
    head = head_of("unigram")
    again = build_head(head.settings).double()
    again.load_state_dict(head.state_dict())
    assert again.settings == head.settings
    assert torch.equal(again.sampling.counts, head.sampling.counts)


def test_counts_are_needed_where_words_are_drawn_by_them(hidden: Tensor, words: Tensor) -> None:
    head = SampledSoftmax(PROJECTION, N_WORDS, N_SAMPLES, "unigram").double()
    with pytest.raises(ElmoError, match="E022"):
        head.training_log_probabilities(hidden, words)


@pytest.mark.parametrize(
    "counts", [[], [1] * (N_WORDS - 1), [0] * N_WORDS, [-1] + [1] * (N_WORDS - 1), [float("nan")] * N_WORDS], ids=len
)
def test_counts_that_cannot_be(counts: list[int]) -> None:
    with pytest.raises(ConfigError, match="E023"):
        SampledSoftmax(PROJECTION, N_WORDS, N_SAMPLES, "unigram").set_counts(counts)


def test_words_that_were_never_counted_are_drawn_in_time() -> None:
    sampler = WordSampler("unigram", 1000)
    counts = usable_counts(torch.tensor([10**12, *[0] * 999]))
    assert len(sampler.draw(20, torch.Generator().manual_seed(0), counts).words.unique()) == 20
