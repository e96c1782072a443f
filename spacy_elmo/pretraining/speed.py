"""How a device trains fastest: measured on a run's own model and text, not guessed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Literal, NamedTuple, get_args

import torch
from torch import nn

from ..errors import ConfigError, Errors, TrainingError, detail_of
from ..lm.bilm import BiLM
from ..lm.lstm import Recurrence
from ..lm.output_head import OutputHead
from ..lm.precision import products_in
from .objective import Batch, log_probabilities

Precision = Literal["float32", "bfloat16", "float16"]

# What is named first is given up only for something that is clearly faster.
_MARGIN = 1.05


class Choice(NamedTuple):
    """How to train.

    precision (str): Of matrix products.
    recurrence (str): How the LSTMs run.
    words_per_second (dict[str, float]): What was measured, by "precision recurrence"; empty where there was no choice.
    failed (dict[str, str]): Ways that this device cannot go, and what it says.
    """

    precision: Precision
    recurrence: Recurrence
    words_per_second: dict[str, float]
    failed: dict[str, str]


def choose_speed(
    bilm: BiLM,
    head: OutputHead,
    batches: Sequence[Batch],
    device: torch.device,
    precisions: Sequence[str] = ("float32", "bfloat16"),
    recurrences: Sequence[str] = get_args(Recurrence),
    seconds: float = 5.0,
) -> Choice:
    """Measure forward and backward passes, by turns, and choose the fastest way. Weights, gradients and torch's random
    numbers are as before.

    bilm (BiLM), head (OutputHead): The model, on the device.
    batches (Sequence[Batch]): Some of the text to train on, brought to the device.
    precisions (Sequence[str]): Those allowed, the most wanted first; "float16" is not measured on a CPU.
    recurrences (Sequence[str]): Those allowed, the most wanted first; "compiled" is not measured without numba or on another
        device than a CPU, "fused" not where there are clips.
    seconds (float): For how long to measure, though each way at least once.
    RETURNS (Choice): The first way, unless another one is at least 5 % faster. If one alone is possible, it is not measured.
    RAISES (TrainingError): E260 if there is no way or no text to measure, or no way that works; E261 for unknown ways.
    """
    ways = _possible_ways(bilm, device, precisions, recurrences)
    if len(ways) == 1:
        return Choice(*ways[0], {}, {})
    if not batches:
        raise TrainingError(Errors.E260.format(problem="there is no text to measure them on"))
    speeds: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    with _as_before(bilm, head):
        for round_number, batch in enumerate(_in_turn(batches, seconds)):
            for way in ways:
                name = " ".join(way)
                if name in failed:
                    continue
                try:
                    taken = _seconds(bilm, head, batch, device, way)
                except Exception as error:  # of torch or of numba
                    failed[name] = detail_of(error)
                    continue
                if round_number:  # the first time, memory is found and kernels are made
                    speeds.setdefault(name, []).append(batch.n_words / taken)
    found = {name: statistics.median(measured) for name, measured in speeds.items() if name not in failed}
    working = [way for way in ways if " ".join(way) in found]
    if not working:
        raise TrainingError(Errors.E260.format(problem=f"none works here ({failed})"))
    best = working[0]
    for way in working[1:]:
        if found[" ".join(way)] > found[" ".join(best)] * (_MARGIN if best == working[0] else 1):
            best = way
    return Choice(*best, found, failed)


def _possible_ways(
    bilm: BiLM, device: torch.device, precisions: Sequence[str], recurrences: Sequence[str]
) -> list[tuple[Precision, Recurrence]]:
    every: list[tuple[Precision, Recurrence]] = list(product(get_args(Precision), get_args(Recurrence)))
    known = {name for way in every for name in way}
    if unknown := sorted({*precisions, *recurrences} - known):
        raise TrainingError(Errors.E261.format(unknown=unknown, known=sorted(known)))
    named = [way for wanted in product(precisions, recurrences) for way in every if way == wanted]
    if len(named) == 1:
        return named  # it was not asked what is possible
    can_run = {kind: can_recur(bilm, kind) for kind in {way[1] for way in named}}
    ways = [way for way in named if can_run[way[1]] and (way[0] != "float16" or device.type != "cpu")]
    if not ways:
        needs = "'fused' needs a biLM without clips, 'compiled' numba and a CPU, 'float16' a GPU"
        raise TrainingError(Errors.E260.format(problem=f"none of {named} is possible here; {needs}"))
    return ways


def can_recur(bilm: BiLM, kind: Recurrence) -> bool:
    """RETURNS (bool): Whether the LSTMs of the biLM can run in a way, where it is now."""
    before = bilm.recurrence
    try:
        bilm.set_recurrence(kind)
    except ConfigError:
        return False
    finally:
        bilm.set_recurrence(before)
    return True


def _in_turn(batches: Sequence[Batch], seconds: float) -> Iterator[Batch]:
    """One to warm up, at least one more, and on until the time is over."""
    yield batches[0]
    end = time.perf_counter() + seconds
    number = 0
    while not number or time.perf_counter() < end:
        yield batches[number % len(batches)]
        number += 1


def _seconds(
    bilm: BiLM, head: OutputHead, batch: Batch, device: torch.device, way: tuple[Precision, Recurrence]
) -> float:
    precision, recurrence = way
    bilm.set_recurrence(recurrence)
    score = partial(head.training_log_probabilities, generator=torch.Generator().manual_seed(0))
    _wait_for(device)
    start = time.perf_counter()
    with products_in(precision, device):
        scores, _ = log_probabilities(bilm, score, batch)
        loss = -scores.mean()
    torch.autograd.backward(loss)
    _wait_for(device)
    return time.perf_counter() - start


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _as_before(*modules: nn.Module) -> Iterator[None]:
    """Within, there are gradients of its own; after it, those of before, and the recurrence of before."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
    gradients = [parameter.grad for parameter in parameters]
    recurrences = [(module, module.recurrence) for module in modules if isinstance(module, BiLM)]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient
        for module, kind in recurrences:
            module.set_recurrence(kind)
