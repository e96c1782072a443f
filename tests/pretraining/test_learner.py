"""A training step against the same in plain torch: time steps written out, sentence by sentence, gradients by autograd."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.characters import BEGIN_SENTENCE, END_SENTENCE
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.softmax import OutputHead, VocabularyEncoder, build_head
from spacy_elmo.pretraining import learner as learner_module
from spacy_elmo.pretraining.batches import Window
from spacy_elmo.pretraining.distributed import Workers
from spacy_elmo.pretraining.dropout import SeededDropout, VariationalDropout
from spacy_elmo.pretraining.head_settings import head_settings
from spacy_elmo.pretraining.learner import Learner
from spacy_elmo.pretraining.objective import Batch, log_probabilities, prepare_sentences, prepare_windows
from spacy_elmo.pretraining.settings import TrainingSettings
from spacy_elmo.pretraining.vocabulary import Vocabulary
from tests.pretraining.small_runs import CONFIG

Sentences = list[list[str]]

STEPS: list[Sentences] = [
    [["the", "cat", "sat"], ["a"], ["the", "dog", "sat", "unheard"]],
    [["a", "cat"], ["cat", "cat", "cat", "dog", "a"], ["dog"]],
    [["sat"], ["the", "unheard", "a", "a"], ["dog", "sat", "the"]],
]
VOCABULARY = Vocabulary.count([["the", "the", "cat", "sat", "a", "dog"]], 100)
FULL = {"kind": "full"}


def model(softmax: dict[str, Any] | None = None, **changes: Any) -> tuple[BiLM, OutputHead]:
    torch.manual_seed(4)
    bilm = BiLM(BiLMConfig.from_dict({**CONFIG.to_dict(), **changes}))
    return bilm, build_head(head_settings(softmax or FULL, CONFIG.projection, len(VOCABULARY)))


def learner_of(softmax: dict[str, Any] | None = None, **settings: Any) -> Learner:
    chosen = {"parts": 1, "dropout": 0.0, **settings}
    bilm, head = model(softmax)
    head.bind(VocabularyEncoder(bilm, VOCABULARY.words))
    return Learner(bilm, head, TrainingSettings(**chosen), Workers())


def parts_of(sentences: Sentences, parts: int) -> dict[int, Batch]:
    return {part: prepare_sentences(sentences[part::parts], VOCABULARY) for part in range(parts)}


def learn(learner: Learner, batches: dict[int, Batch], step: int = 0, rate: float = 0.01) -> None:
    learner.learn(batches, sum(batch.places for batch in batches.values()), step, rate)


def weights_of(learner: Learner) -> dict[str, Tensor]:
    parts = learner.weights().items()
    return {f"{part}.{name}": values.clone() for part, named in parts for name, values in named.items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


# The same in plain torch.


def plain_stack(bilm: BiLM, direction: int, words: Sequence[Any]) -> Tensor:
    inputs = bilm.encode_words(words)
    for depth, layer in enumerate((bilm.forward_lm, bilm.backward_lm)[direction]):
        cell, hidden, outputs = torch.zeros(CONFIG.cells), torch.zeros(CONFIG.projection), []
        for vector in inputs:
            gates = vector @ layer.input_weight + hidden @ layer.recurrent_weight + layer.bias
            i, f, o, j = gates.chunk(4)
            cell = (torch.sigmoid(f + 1) * cell + torch.sigmoid(i) * torch.tanh(j)).clamp(-3, 3)
            hidden = ((torch.sigmoid(o) * torch.tanh(cell)) @ layer.projection_weight).clamp(-3, 3)
            outputs.append(hidden)
        inputs = torch.stack(outputs) + (inputs if depth else 0)
    return inputs


def plain_loss(bilm: BiLM, head: OutputHead, sentences: Sentences) -> Tensor:
    """Mean over directions and places."""
    scores = []
    for sentence in sentences:
        forward, backward = [*sentence, END_SENTENCE], [*sentence[::-1], BEGIN_SENTENCE]
        read = [BEGIN_SENTENCE, *sentence], [END_SENTENCE, *sentence[::-1]]
        for direction, predicted in enumerate((forward, backward)):
            ids = torch.tensor([VOCABULARY.id_of(word) for word in predicted])
            scores.append(head(plain_stack(bilm, direction, read[direction]), ids))
    return -torch.cat(scores).mean()


def by_depth(bilm: BiLM, head: OutputHead) -> list[list[nn.Parameter]]:
    modules = [[bilm.encoder], *([one, other] for one, other in zip(bilm.forward_lm, bilm.backward_lm)), [head]]
    return [[parameter for module in some for parameter in module.parameters()] for some in modules]


class PlainAdagrad:
    """accumulator += g²; weight -= rate · g / √accumulator; the accumulators begin at 1, as TensorFlow's do."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.groups = groups
        self.sums = [[torch.ones_like(parameter) for parameter in group["params"]] for group in groups]

    @torch.no_grad()
    def step(self) -> None:
        for group, sums in zip(self.groups, self.sums):
            for parameter, total in zip(group["params"], sums):
                total += parameter.grad**2
                parameter -= group["lr"] * parameter.grad / total.sqrt()


def plain_weights(settings: TrainingSettings, rate: float) -> list[Tensor]:
    bilm, head = model()
    shares = [settings.layer_rate_decay ** (CONFIG.n_layers + 1 - depth) for depth in range(CONFIG.n_layers + 2)]
    groups = [{"params": some, "lr": rate * share} for some, share in zip(by_depth(bilm, head), shares)]
    parameters = [*bilm.parameters(), *head.parameters()]
    if settings.optimizer == "adagrad":
        optimizer: Any = PlainAdagrad(groups)
    else:
        decay = settings.weight_decay
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-8, weight_decay=decay, foreach=False)
    for sentences in STEPS:
        for parameter in parameters:
            parameter.grad = None
        (settings.loss_scale * plain_loss(bilm, head, sentences)).backward()
        nn.utils.clip_grad_norm_(parameters, settings.max_gradient_norm)
        optimizer.step()
    return parameters


def learns_as_plain_torch(learner: Learner) -> None:
    rate = 0.1 if learner.settings.optimizer == "adagrad" else 0.003
    for step, sentences in enumerate(STEPS):
        learn(learner, parts_of(sentences, learner.settings.parts), step, rate)
    for found, wanted in zip(learner.parameters, plain_weights(learner.settings, rate), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw", "loss_scale": 50.0, "max_gradient_norm": 20.0},
        {"optimizer": "adamw", "max_gradient_norm": 100.0, "layer_rate_decay": 0.4, "weight_decay": 0.3},
        {"optimizer": "adagrad", "loss_scale": 20.0, "max_gradient_norm": 10.0},
        {"optimizer": "adagrad", "max_gradient_norm": 100.0, "layer_rate_decay": 0.5},
    ],
)
def test_steps_are_those_of_plain_torch(parts: int, settings: dict[str, Any]) -> None:
    learns_as_plain_torch(learner_of(parts=parts, **settings))


@pytest.fixture
def unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adagrad as it is on a GPU."""
    adagrad = torch.optim.Adagrad
    monkeypatch.setattr(torch.optim, "Adagrad", lambda *groups, **kwargs: adagrad(*groups, **{**kwargs, "fused": None}))


def test_adagrad_that_is_not_fused_takes_the_same_steps(unfused: None) -> None:
    learner = learner_of(optimizer="adagrad", loss_scale=20.0, max_gradient_norm=10.0)
    assert not learner.optimizer.defaults["fused"]
    learns_as_plain_torch(learner)


def test_a_tied_head_teaches_the_encoder() -> None:
    learner, (bilm, head) = learner_of({"kind": "tied"}, optimizer="adagrad"), model({"kind": "tied"})
    head.bind(VocabularyEncoder(bilm, VOCABULARY.words))
    learn(learner, parts_of(STEPS[0], 1))
    plain_loss(bilm, head, STEPS[0]).backward()
    parameters = [*bilm.parameters(), *head.parameters()]
    nn.utils.clip_grad_norm_(parameters, 1.0)
    for found, wanted in zip(learner.parameters, parameters, strict=True):
        gradient = torch.zeros_like(wanted) if wanted.grad is None else wanted.grad
        expected = wanted - 0.01 * gradient / (1 + gradient**2).sqrt()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_what_is_told_of_steps() -> None:
    learner = learner_of(max_gradient_norm=0.01, loss_scale=5.0)
    bilm, head = model()
    loss = 5 * plain_loss(bilm, head, STEPS[0])
    loss.backward()
    norm = nn.utils.get_total_norm([parameter.grad for parameter in [*bilm.parameters(), *head.parameters()]])
    learn(learner, parts_of(STEPS[0], 1))
    found = learner.window()
    assert found.loss == pytest.approx(loss.item() / 5, rel=1e-5)
    assert found.gradient_norm == pytest.approx(norm.item(), rel=1e-4)
    assert found.skipped == 0 and math.isnan(learner.window().loss)


def test_a_part_at_its_end_gives_its_place_to_the_others() -> None:
    one, other = learner_of(parts=3), learner_of(parts=1)
    batches = parts_of(STEPS[0], 3)
    del batches[1]
    learn(one, batches)
    learn(other, {0: prepare_sentences([STEPS[0][0], STEPS[0][2]], VOCABULARY)})
    for found, wanted in zip(one.parameters, other.parameters):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


# The head first.


@pytest.mark.parametrize("optimizer", ["adamw", "adagrad"])
def test_the_head_learns_alone_at_first(optimizer: str) -> None:
    learner = learner_of(optimizer=optimizer, head_steps=2, weight_decay=0.5)
    states = [weights_of(learner)]
    for step, sentences in enumerate(STEPS):
        learn(learner, parts_of(sentences, 1), step)
        states.append(weights_of(learner))
    of_head = {name for name in states[0] if name.startswith("head.")}
    moves = [changed(before, after) for before, after in itertools.pairwise(states)]
    assert moves[:2] == [of_head, of_head]
    assert moves[2] == states[0].keys()


def test_the_head_learns_alone_as_with_a_frozen_bilm() -> None:
    learner = learner_of(head_steps=9)
    for step, sentences in enumerate(STEPS):
        learn(learner, parts_of(sentences, 1), step, 0.003)
    bilm, head = model()
    bilm.requires_grad_(False)
    optimizer = torch.optim.AdamW(head.parameters(), 0.003, (0.9, 0.98), weight_decay=0.01)
    for sentences in STEPS:
        optimizer.zero_grad()
        plain_loss(bilm, head, sentences).backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
    for found, wanted in zip(learner.head.parameters(), head.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("stop", [1, 2])
def test_going_on_across_the_steps_of_the_head(stop: int) -> None:
    whole, begun, resumed = (learner_of(head_steps=2, dropout=0.3) for _ in range(3))
    for step, sentences in enumerate(STEPS):
        learn(whole, parts_of(sentences, 1), step)
        if step < stop:
            learn(begun, parts_of(sentences, 1), step)
    parts = {part: {name: t.clone() for name, t in named.items()} for part, named in begun.tensors().items()}
    resumed.restore(parts, "there")
    for step, sentences in list(enumerate(STEPS))[stop:]:
        learn(resumed, parts_of(sentences, 1), step)
    assert changed(weights_of(whole), weights_of(resumed)) == set()


# Dropout.


@pytest.mark.parametrize(("variational", "kind"), [(False, SeededDropout), (True, VariationalDropout)])
def test_dropout_follows_seed_step_and_part(variational: bool, kind: type) -> None:
    def told(step: int, part: int, seed: int = 0) -> float:
        learner = learner_of(dropout=0.4, variational_dropout=variational, seed=seed, parts=part + 1)
        learn(learner, {part: prepare_sentences(STEPS[0], VOCABULARY)}, step)
        return learner.window().loss

    bilm, head = model()
    generator = torch.Generator().manual_seed(learner_module._seed(0, 5, 1))
    batch = prepare_sentences(STEPS[0], VOCABULARY)
    scores, _ = log_probabilities(bilm, head, batch, dropout=kind(0.4, generator))
    assert told(5, 1) == told(5, 1) == pytest.approx(-scores.mean().item(), rel=1e-6)
    assert len({told(5, 1), told(4, 1), told(5, 0), told(5, 1, seed=1)}) == 4


def test_samples_follow_step_and_part() -> None:
    def told(step: int, part: int) -> float:
        learner = learner_of({"kind": "sampled", "n_samples": 3}, parts=part + 1)
        learn(learner, {part: prepare_sentences(STEPS[0], VOCABULARY)}, step)
        return learner.window().loss

    found = [told(step, part) for step in range(6) for part in range(2)]
    assert told(0, 0) == found[0] and len(set(found)) > 3


# Steps that are passed over, and the scale of float16.


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Numbers of calls, from 1, whose log-probabilities are infinite."""
    calls, which, scores = itertools.count(1), set(), learner_module.log_probabilities

    def infinite(*arguments: Any) -> Any:
        found, state = scores(*arguments)
        return found * (math.inf if next(calls) in which else 1.0), state

    monkeypatch.setattr(learner_module, "log_probabilities", infinite)
    yield which


@pytest.mark.parametrize("optimizer", ["adamw", "adagrad"])
def test_a_step_without_finite_gradients_is_as_if_it_had_not_been(optimizer: str, spoilt: set[int]) -> None:
    spoilt.add(2)
    learner = learner_of(optimizer=optimizer)
    for step, sentences in enumerate(STEPS):
        before = weights_of(learner), {name: t.clone() for name, t in learner.tensors()["optimizer"].items()}
        learn(learner, parts_of(sentences, 1), step)
        if step == 1:
            assert changed(before[0], weights_of(learner)) == set()
            assert changed(before[1], learner.tensors()["optimizer"]) == set()
    other = learner_of(optimizer=optimizer)
    for step in (0, 2):
        learn(other, parts_of(STEPS[step], 1), step)
    assert changed(weights_of(other), weights_of(learner)) == set()
    found, wanted = learner.window(), other.window()
    assert (found.skipped, wanted.skipped) == (1, 0) and found[:2] == wanted[:2]
    assert learner.is_finite()


def test_adagrad_that_is_not_fused_passes_over_a_step_without_finite_gradients(unfused: None, spoilt: set[int]) -> None:
    spoilt.add(2)
    learner, other = (learner_of(optimizer="adagrad") for _ in range(2))
    for step, sentences in enumerate(STEPS):
        learn(learner, parts_of(sentences, 1), step)
    for step in (0, 2):
        learn(other, parts_of(STEPS[step], 1), step)
    assert changed(weights_of(other), weights_of(learner)) == set()
    assert learner.window().skipped == 1


def test_skipped_steps_are_counted_for_good(spoilt: set[int]) -> None:
    spoilt.update({1, 2, 4})
    learner = learner_of()
    told = []
    for step in range(4):
        learn(learner, parts_of(STEPS[0], 1), step)
        told.append(learner.window())
    assert [window.skipped for window in told] == [1, 2, 2, 3]
    assert [math.isnan(window.loss) for window in told] == [True, True, False, True]


def test_the_scale_of_float16_falls_at_once_and_rises_slowly(spoilt: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_module, "_GROWTH_STEPS", 3)
    spoilt.update({2, 8})
    learner = learner_of(precision="float16")
    scales = []
    for step in range(9):
        learn(learner, parts_of(STEPS[step % 3], 1), step, 0.001)
        scales.append(learner.tensors()["step"]["scale"][0].item() / 2.0**16)
    assert scales == [1, 0.5, 0.5, 0.5, 1, 1, 1, 0.5, 0.5]
    assert learner.window().skipped == 2


def test_float16_goes_on_with_the_scale_that_it_had(spoilt: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_module, "_GROWTH_STEPS", 3)
    spoilt.add(2)
    straight, parted = learner_of(precision="float16"), learner_of(precision="float16")
    for step in range(3):
        learn(straight, parts_of(STEPS[step], 1), step, 0.001)
    parted.restore(deepcopy(straight.tensors()), "a test")
    spoilt.clear()
    for step in range(3, 6):
        for learner in (straight, parted):
            learn(learner, parts_of(STEPS[step % 3], 1), step, 0.001)
    assert straight.tensors()["step"]["scale"].tolist() == parted.tensors()["step"]["scale"].tolist() != [2.0**16, 0]
    assert changed(weights_of(straight), weights_of(parted)) == set()


def test_the_scale_changes_no_step() -> None:
    low, exact = learner_of(precision="float16", max_gradient_norm=0.2), learner_of(max_gradient_norm=0.2)
    before = weights_of(exact)
    for each in (low, exact):
        learn(each, parts_of(STEPS[0], 1))
    found, wanted = low.window(), exact.window()
    assert found.skipped == 0
    assert found.loss == pytest.approx(wanted.loss, rel=1e-3)
    assert found.gradient_norm == pytest.approx(wanted.gradient_norm, rel=0.01)
    for name, values in weights_of(exact).items():
        moved, moved_low = (values - before[name]).flatten(), (weights_of(low)[name] - before[name]).flatten()
        assert torch.cosine_similarity(moved, moved_low, dim=0) > 0.97, name


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_low_precision_learns(precision: str) -> None:
    learner = learner_of(precision=precision)
    losses = []
    for step in range(40):
        learn(learner, parts_of(STEPS[step % 3], 1), step)
        losses.append(learner.window().loss)
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    assert all(parameter.dtype == torch.float32 for parameter in learner.parameters)


# Streams.


def windows(text: Sequence[str]) -> Batch:
    read = list(text)
    return prepare_windows([Window(read, [*read[1:], "a"], read[::-1], [*read[::-1][1:], "a"])], VOCABULARY)


def test_streams_go_on_where_they_were_without_gradients_further_back() -> None:
    learner = learner_of(objective="streams", unroll=3, batch_words=3, max_gradient_norm=100.0)
    first, second = windows(["the", "cat", "sat"]), windows(["a", "dog", "the"])
    learn(learner, {0: first}, rate=0.0)
    learner.window()
    learn(learner, {0: second}, 1, rate=0.0)
    bilm, head = model()
    zero = learner._first_state()
    _, state = log_probabilities(bilm, head, first, zero)
    scores, _ = log_probabilities(bilm, head, second, type(state)(*(part.detach() for part in state)))
    (-scores.mean()).backward()
    found = learner.window()
    norm = nn.utils.get_total_norm([parameter.grad for parameter in [*bilm.parameters(), *head.parameters()]])
    assert found.loss == pytest.approx(-scores.mean().item(), rel=1e-6)
    assert found.gradient_norm == pytest.approx(norm.item(), rel=1e-4)
    anew, _ = log_probabilities(bilm, head, second, zero)
    assert abs(anew.mean() - scores.mean()) > 1e-4


def test_each_part_has_its_own_streams() -> None:
    learner = learner_of(objective="streams", unroll=3, batch_words=3, parts=2)
    batches = {0: windows(["the", "cat", "sat"]), 1: windows(["a", "dog", "the"])}
    learn(learner, batches)
    tensors = learner.tensors()
    assert tensors["stream_cell"].keys() == {"0", "1"}
    assert not torch.equal(tensors["stream_cell"]["0"], tensors["stream_cell"]["1"])
    other = learner_of(objective="streams", unroll=3, batch_words=3, parts=2)
    other.restore({part: {name: t.clone() for name, t in named.items()} for part, named in tensors.items()}, "there")
    for each in (learner, other):
        learn(each, {0: batches[1], 1: batches[0]}, 1)
    assert changed(weights_of(learner), weights_of(other)) == set()
