"""How to train: every number that fixes a training run, beside the shape of its model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import Errors, TrainingError

FREE_TO_CHANGE = frozenset({"evaluate_every", "save_every"})
"""Settings that a run may change when it goes on: they change nothing of the weights."""

_AT_LEAST = {
    "epochs": 1,
    "batch_words": 1,
    "warmup_steps": 0,
    "vocabulary_size": 4,
    "min_count": 1,
    "seed": 0,
    "evaluate_every": 1,
    "save_every": 1,
}


def _adaptive() -> dict[str, Any]:
    return {"kind": "adaptive", "cutoffs": [1000, 4000, 12000], "shrink": 2.0}


@dataclass(frozen=True)
class TrainingSettings:
    """How to train.

    epochs (int): Passes over the corpus.
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
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            self._require(name, whole and value >= least, f"a whole number from {least} up")
        for name in ("peak_rate", "max_gradient_norm"):
            self._require(name, 0 < getattr(self, name) < float("inf"), "a number above 0")
        self._require("weight_decay", 0 <= self.weight_decay < float("inf"), "a number from 0 up")
        self._require("dropout", 0 <= self.dropout < 1, "a number from 0 up and below 1")
        kind = self.softmax.get("kind")
        self._require("softmax", kind in ("full", "adaptive"), "of the kind 'full' or 'adaptive'")
        self._require("softmax", kind == "full" or bool(self.softmax.get("cutoffs")), "with 'cutoffs', if adaptive")

    def head_settings(self, projection: int, n_words: int) -> dict[str, Any]:
        """RETURNS (dict): What `softmax.build_head` takes. A small text has a small vocabulary: clusters that would be empty
        are left out."""
        softmax = dict(self.softmax)
        if softmax["kind"] == "adaptive":
            softmax["cutoffs"] = [cutoff for cutoff in softmax["cutoffs"] if cutoff < n_words]
            if not softmax["cutoffs"]:
                softmax = {"kind": "full"}
        return {**softmax, "projection": projection, "n_words": n_words}

    def _require(self, name: str, condition: bool, expected: str) -> None:
        if not condition:
            raise TrainingError(Errors.E216.format(name=name, value=getattr(self, name), expected=expected))
