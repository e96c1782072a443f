"""Learning rates over the steps of a training."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from spacy.util import registry

from .checks import require

_require = partial(require, "the schedule spacy_elmo.slanted_triangular.v1")


@registry.schedules("spacy_elmo.slanted_triangular.v1")
def slanted_triangular(max_rate: float, num_steps: int, cut_frac: float = 0.1, ratio: float = 32.0) -> Iterator[float]:
    """The slanted triangular learning rate of ULMFiT (Howard and Ruder 2018, section 3.1): up steeply, then down slowly, and from
    the last step on it stays at its lowest. Thinc's own goes on falling, below zero.

    max_rate (float): The highest rate.
    num_steps (int): Steps of the training.
    cut_frac (float): The part of the steps in which the rate rises.
    ratio (float): The highest rate divided by the lowest.
    YIELDS (float): The rate of each step, without end.
    RAISES (ConfigError): E300 if a setting cannot be.
    """
    _require("num_steps", num_steps, num_steps >= 1, "a whole number from 1 up")
    _require("cut_frac", cut_frac, 0 < cut_frac < 1, "a number above 0 and below 1")
    _require("ratio", ratio, ratio >= 1, "a number from 1 up")
    return _rates(max_rate, num_steps, max(1, int(num_steps * cut_frac)), ratio)


def _rates(max_rate: float, num_steps: int, cut: int, ratio: float) -> Iterator[float]:
    step = 0
    while True:
        step += 1
        height = step / cut if step <= cut else max(0.0, (num_steps - step) / max(1, num_steps - cut))
        yield max_rate * (1 + height * (ratio - 1)) / ratio
