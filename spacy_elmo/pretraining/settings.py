"""How to train: every number that fixes a training run, beside the shape of its model."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

from ..errors import Errors, TrainingError

FREE_TO_CHANGE = frozenset({"evaluate_every", "save_every"})
"""Settings that a run may change when it goes on: they change nothing of the weights."""

_AT_LEAST = {
    "epochs": 1,
    "max_words": 1,
    "buffer_words": 1,
    "batch_words": 1,
    "warmup_steps": 0,
    "vocabulary_size": 4,
    "min_count": 1,
    "seed": 0,
    "evaluate_every": 1,
    "save_every": 1,
}
_MOST = 2**63 - 1
"""What the generators of torch take as a seed."""

_MOST_CUTOFFS, _MOST_SHRINK = 100, 1000
_SOFTMAX_KEYS = {"full": {"kind"}, "adaptive": {"kind", "cutoffs", "shrink"}}
_SOFTMAX = (
    "{'kind': 'full'}, or {'kind': 'adaptive', 'cutoffs': [rising word ids from 1 up, at most "
    f"{_MOST_CUTOFFS}], 'shrink': a number from 1 to {_MOST_SHRINK}}}"
)


def _adaptive() -> dict[str, Any]:
    return {"kind": "adaptive", "cutoffs": [1000, 4000, 12000], "shrink": 2.0}


@dataclass(frozen=True)
class TrainingSettings:
    """How to train.

    epochs (int): Passes over the corpus.
    max_words (int): Longer lines of the corpus are cut into sentences of this many words.
    buffer_words (int): Words of the corpus that are shuffled and sorted by length together.
    batch_words (int): Words of a step.
    peak_rate (float): Highest learning rate.
    warmup_steps (int): Steps until then.
    dropout (float): On the input of each LSTM layer and of the softmax.
    weight_decay (float): Of AdamW.
    max_gradient_norm (float): Bound of the norm of all gradients together.
    vocabulary_size (int): Words the softmax predicts, specials included.
    min_count (int): Rarer words are left out of the vocabulary.
    softmax (dict): The output head: "kind" and its settings, without sizes.
    bfloat16 (bool): Matrix products in bfloat16.
    seed (int): Decides the first weights, the order of the text and the dropout.
    evaluate_every (int): Steps between held-out evaluations.
    save_every (int): Steps between checkpoints.

    RAISES (TrainingError): E216 if a setting cannot be.
    """

    epochs: int = 1
    max_words: int = 200
    buffer_words: int = 400_000
    batch_words: int = 4096
    peak_rate: float = 4e-3
    warmup_steps: int = 300
    dropout: float = 0.1
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    vocabulary_size: int = 30_000
    min_count: int = 2
    softmax: dict[str, Any] = field(default_factory=_adaptive)
    bfloat16: bool = False
    seed: int = 0
    evaluate_every: int = 1000
    save_every: int = 500

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            self._require(name, _is_whole(getattr(self, name), least), f"a whole number from {least} to 2**63 - 1")
        for name in ("peak_rate", "max_gradient_norm"):
            value = getattr(self, name)
            self._require(name, _is_number(value) and value > 0, "a number above 0")
        decay, dropout = self.weight_decay, self.dropout
        self._require("weight_decay", _is_number(decay) and decay >= 0, "a number from 0 up")
        self._require("dropout", _is_number(dropout) and 0 <= dropout < 1, "a number from 0 up and below 1")
        self._require("bfloat16", isinstance(self.bfloat16, bool), "true or false")
        self._require("softmax", _is_softmax(self.softmax), _SOFTMAX)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> TrainingSettings:
        """Settings by name; those left out take their defaults.

        RAISES (TrainingError): E216 for a value that cannot be, E221 for an unknown setting.
        """
        known = [setting.name for setting in fields(cls)]
        unknown = sorted(set(settings) - set(known))
        if unknown:
            raise TrainingError(Errors.E221.format(names=unknown, known=known))
        return cls(**settings)

    def head_settings(self, projection: int, n_words: int) -> dict[str, Any]:
        """Settings of the output head for a vocabulary. A small text has a small one: clusters that would be empty are
        left out.

        RETURNS (dict): What `softmax.build_head` takes.
        """
        softmax = dict(self.softmax)
        if softmax["kind"] == "adaptive":
            softmax["cutoffs"] = [cutoff for cutoff in softmax["cutoffs"] if cutoff < n_words]
            if not softmax["cutoffs"]:
                softmax = {"kind": "full"}
        return {**softmax, "projection": projection, "n_words": n_words}

    def _require(self, name: str, condition: bool, expected: str) -> None:
        if not condition:
            raise TrainingError(Errors.E216.format(name=name, value=getattr(self, name), expected=expected))


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_softmax(value: object) -> bool:
    if not isinstance(value, dict) or value.get("kind") not in ("full", "adaptive"):
        return False
    if not value.keys() <= _SOFTMAX_KEYS[value["kind"]]:
        return False
    shrink = value.get("shrink", 1)
    fits = _is_number(shrink) and 1 <= shrink <= _MOST_SHRINK
    return value["kind"] == "full" or (fits and _are_cutoffs(value.get("cutoffs")))


def _are_cutoffs(value: object) -> bool:
    if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= _MOST_CUTOFFS:
        return False
    return all(_is_whole(cutoff, 1) for cutoff in value) and all(one < next_one for one, next_one in pairwise(value))
