from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from spacy_elmo.errors import TrainingError
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.softmax import AdaptiveSoftmax, OutputHead, SampledSoftmax
from spacy_elmo.pretraining import speed
from spacy_elmo.pretraining.objective import Batch, prepare_sentences
from spacy_elmo.pretraining.speed import Choice, choose_speed
from spacy_elmo.pretraining.vocabulary import SPECIALS, Vocabulary
from tests.pretraining.small_runs import CONFIG, CPU, without_numba

VOCABULARY = Vocabulary([*SPECIALS, *(f"w{number}" for number in range(20))])
TWO = ("steps", "fused")
UNCLIPPED = replace(CONFIG, cell_clip=None, projection_clip=None)


@pytest.fixture
def bilm() -> BiLM:
    torch.manual_seed(1)
    return BiLM(UNCLIPPED)


@pytest.fixture
def head() -> OutputHead:
    return SampledSoftmax(CONFIG.projection, len(VOCABULARY), n_samples=5)


@pytest.fixture
def batches() -> list[Batch]:
    return [prepare_sentences([["w1", "w2", "w3"], ["w4"]], VOCABULARY), prepare_sentences([["w5"]], VOCABULARY)]


def pretend(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> list[str]:
    """Let each way take a given time; the ways that are measured come back."""
    measured: list[str] = []

    def take(bilm: BiLM, head: OutputHead, batch: Batch, device: Any, way: tuple[str, str]) -> float:
        measured.append(" ".join(way))
        return seconds[" ".join(way)]

    monkeypatch.setattr(speed, "_seconds", take)
    return measured


def test_all_ways_are_measured(bilm: BiLM, head: OutputHead, batches: list[Batch]) -> None:
    pytest.importorskip("numba")
    choice = choose_speed(bilm, head, batches, CPU, seconds=0.2)
    names = {f"{precision} {kind}" for precision in ("float32", "bfloat16") for kind in ("steps", "compiled", "fused")}
    assert set(choice.words_per_second) == names and choice.failed == {}
    assert all(words > 0 for words in choice.words_per_second.values())
    assert f"{choice.precision} {choice.recurrence}" in names


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({"float32 steps": 1.0, "float32 fused": 0.9, "bfloat16 steps": 0.8, "bfloat16 fused": 0.7}, "bfloat16 fused"),
        ({"float32 steps": 1.0, "float32 fused": 0.8, "bfloat16 steps": 0.9, "bfloat16 fused": 1.1}, "float32 fused"),
        ({"float32 steps": 1.0, "float32 fused": 0.97, "bfloat16 steps": 0.96, "bfloat16 fused": 2.0}, "float32 steps"),
    ],
)
def test_the_fastest_is_chosen_if_it_is_clearly_so(
    bilm: BiLM,
    head: OutputHead,
    batches: list[Batch],
    seconds: dict[str, float],
    chosen: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, seconds)
    choice = choose_speed(bilm, head, batches, CPU, recurrences=TWO, seconds=0)
    assert f"{choice.precision} {choice.recurrence}" == chosen
    assert choice.words_per_second["float32 steps"] == 4.0  # words of the batch, boundaries not counted


def test_the_first_time_does_not_count(
    bilm: BiLM, head: OutputHead, batches: list[Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = iter([100.0, 1.0, 1.0, 2.0])
    monkeypatch.setattr(speed, "_seconds", lambda *arguments: next(taken))
    choice = choose_speed(bilm, head, batches, CPU, ["float32", "bfloat16"], ["steps"], seconds=0)
    assert choice == Choice("float32", "steps", {"float32 steps": 4.0, "bfloat16 steps": 2.0}, {})


def test_what_was_decided_is_not_measured(bilm: BiLM, head: OutputHead, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = pretend(monkeypatch, {})
    assert choose_speed(bilm, head, [], CPU, ["bfloat16"], ["fused"]) == Choice("bfloat16", "fused", {}, {})
    assert measured == []


def test_clips_leave_no_fused_recurrence(head: OutputHead, batches: list[Batch]) -> None:
    choice = choose_speed(BiLM(CONFIG), head, batches, CPU, ["float32"], TWO)
    assert choice == Choice("float32", "steps", {}, {})


def test_without_numba_nothing_is_compiled(
    bilm: BiLM, head: OutputHead, batches: list[Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_numba(monkeypatch)
    choice = choose_speed(bilm, head, batches, CPU, ["float32"], ["compiled", "steps"])
    assert choice == Choice("float32", "steps", {}, {})


def test_half_precision_is_not_for_a_cpu(bilm: BiLM, head: OutputHead, batches: list[Batch]) -> None:
    assert choose_speed(bilm, head, batches, CPU, ["float32", "float16"], ["steps"]).words_per_second == {}


@pytest.mark.parametrize("error", [RuntimeError, OSError], ids=["of torch", "of a compiler"])
def test_a_way_that_fails_is_left_out(
    bilm: BiLM, head: OutputHead, batches: list[Batch], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(bilm: BiLM, head: OutputHead, batch: Batch, device: Any, way: tuple[str, str]) -> float:
        if way[0] == "bfloat16":
            raise error("no kernel for it")
        return 1.0

    monkeypatch.setattr(speed, "_seconds", take)
    choice = choose_speed(bilm, head, batches, CPU, ["bfloat16", "float32"], ["steps"], seconds=0)
    assert (choice.precision, choice.failed) == ("float32", {"bfloat16 steps": "no kernel for it"})
    with pytest.raises(TrainingError, match="E260.*no kernel for it"):
        choose_speed(bilm, head, batches, CPU, ["bfloat16"], ["steps", "fused"], seconds=0)


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_as_before(
    bilm: BiLM, head: OutputHead, batches: list[Batch], fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fails:

        def interrupted(*arguments: object) -> float:
            raise KeyboardInterrupt

        monkeypatch.setattr(speed, "_wait_for", interrupted)
    parameters = [*bilm.parameters(), *head.parameters()]
    parameters[0].grad = torch.ones_like(parameters[0])
    held = [parameter.grad for parameter in parameters]
    weights, random = [parameter.detach().clone() for parameter in parameters], torch.get_rng_state()
    try:
        choose_speed(bilm, head, batches, CPU, recurrences=TWO, seconds=0)
    except KeyboardInterrupt:
        assert fails
    assert all(torch.equal(parameter, before) for parameter, before in zip(parameters, weights))
    assert [parameter.grad is before for parameter, before in zip(parameters, held)] == [True] * len(held)
    assert torch.equal(parameters[0].grad, torch.ones_like(parameters[0]))
    assert torch.equal(torch.get_rng_state(), random)
    assert bilm.recurrence == "steps"


def test_gradients_are_measured_too(bilm: BiLM, batches: list[Batch], monkeypatch: pytest.MonkeyPatch) -> None:
    backwards: list[torch.Tensor] = []
    monkeypatch.setattr(torch.autograd, "backward", backwards.append)
    head = AdaptiveSoftmax(CONFIG.projection, len(VOCABULARY), [4])
    choose_speed(bilm, head, batches, CPU, ["float32"], TWO, seconds=0)
    assert len(backwards) == 4 and all(loss.requires_grad for loss in backwards)


@pytest.mark.parametrize("ways", [(["float64"], ["steps"]), (["float32"], ["unrolled", "steps"])], ids=str)
def test_unknown_ways(bilm: BiLM, head: OutputHead, batches: list[Batch], ways: Any) -> None:
    with pytest.raises(TrainingError, match="E261"):
        choose_speed(bilm, head, batches, CPU, *ways)


def test_no_text_or_no_way(bilm: BiLM, head: OutputHead, batches: list[Batch]) -> None:
    with pytest.raises(TrainingError, match="E260.*no text"):
        choose_speed(bilm, head, [], CPU)
    with pytest.raises(TrainingError, match="E260"):
        choose_speed(bilm, head, batches, CPU, ["float16", "float16"], ["steps"])
