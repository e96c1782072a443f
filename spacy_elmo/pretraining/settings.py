"""How to train: every number that fixes a training run, beside the shape of its model."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..errors import Errors, TrainingError
from .head_settings import EXPECTED, is_head, is_number, is_whole

FREE_TO_CHANGE = frozenset({"evaluate_every", "save_every", "save_minutes", "keep", "patience"})
"""Settings that a run may change when it goes on: they change nothing of the weights on the way."""

Objective = Literal["sentences", "streams"]
Optimizer = Literal["adamw", "adagrad"]
Schedule = Literal["cosine", "constant", "slanted-triangular"]
Precision = Literal["float32", "bfloat16", "float16", "fastest"]
Recurrence = Literal["steps", "compiled", "fused", "fastest"]

_AT_LEAST = {
    "epochs": 1,
    "max_words": 1,
    "buffer_words": 1,
    "batch_words": 1,
    "parts": 0,
    "unroll": 1,
    "warmup_steps": 0,
    "vocabulary_size": 4,
    "min_count": 1,
    "seed": 0,
    "head_steps": 0,
    "max_rollbacks": 0,
    "patience": 0,
    "evaluate_every": 1,
    "save_every": 1,
    "keep": 1,
}
_ABOVE_ZERO = ("peak_rate", "max_gradient_norm", "loss_scale")
_FROM_ZERO = ("weight_decay", "spike", "save_minutes")


def _adaptive() -> dict[str, Any]:
    return {"kind": "adaptive", "cutoffs": [1000, 4000, 12000], "shrink": 2.0}


@dataclass(frozen=True)
class TrainingSettings:
    """How to train.

    epochs (int): Passes over the corpus.
    objective (str): "sentences": each from the model's initial state, as in use; "streams": text without end, cut into
        windows that hand their state on, as bilm-tf does.
    unroll (int): Words of a window of a stream, which is as far as gradients go back.
    max_words (int): Longer lines of the corpus are cut into sentences of this many words.
    buffer_words (int): Words of the corpus that are shuffled and sorted by length together.
    batch_words (int): Words of a batch.
    parts (int): Batches of a step. Each is read from a part of the text of its own; several processes share them. 0: as
        many as there are processes when the run begins.
    optimizer (str): "adamw" or "adagrad".
    schedule (str): Of the rate: "cosine", down to 2 % of the peak; "constant"; "slanted-triangular", from a 32nd of the peak
        up to it for a tenth of the run, and down again, without other warm-up.
    peak_rate (float): Highest learning rate.
    warmup_steps (int): Steps until then.
    layer_rate_decay (float): Each layer learns at this share of the rate of the layer above it.
    head_steps (int): Steps at the begin in which the output head alone learns.
    plateau_factor (float): The rate is multiplied by this after an evaluation that was not the best so far.
    patience (int): Evaluations without a better perplexity after which training ends; 0 for never.
    dropout (float): On the input of each LSTM layer and of the softmax.
    variational_dropout (bool): One mask for all words of a sentence.
    weight_decay (float): Of AdamW.
    loss_scale (float): Factor of the loss. Clips and Adagrad see it; bilm-tf has its unroll there.
    max_gradient_norm (float): Bound of the norm of all gradients together.
    spike (float): Nats by which a loss above its running mean takes the run back to the last good weights; 0 for never.
    max_rollbacks (int): How often that may happen.
    vocabulary_size (int): Words the softmax predicts, specials included.
    min_count (int): Rarer words are left out of the vocabulary.
    softmax (dict): The output head: "kind" and its settings, without sizes.
    precision (str): Of matrix products: "float32", "bfloat16", "float16" or, measured at the start, "fastest".
    recurrence (str): "steps"; "compiled", the same by loops that numba compiles for a CPU; "fused", torch's own LSTM, for a
        biLM without clips; or, measured at the start, "fastest".
    seed (int): Decides the first weights, the order of the text, the dropout and the samples.
    evaluate_every (int): Steps between held-out evaluations.
    save_every (int): Steps between checkpoints.
    save_minutes (float): Minutes between checkpoints, where that is sooner; 0 for steps alone.
    keep (int): Checkpoints that are kept, beside the best.

    RAISES (TrainingError): E216 if a setting cannot be.
    """

    epochs: int = 1
    objective: Objective = "sentences"
    unroll: int = 20
    max_words: int = 200
    buffer_words: int = 400_000
    batch_words: int = 4096
    parts: int = 0
    optimizer: Optimizer = "adamw"
    schedule: Schedule = "cosine"
    peak_rate: float = 4e-3
    warmup_steps: int = 300
    layer_rate_decay: float = 1.0
    head_steps: int = 0
    plateau_factor: float = 1.0
    patience: int = 0
    dropout: float = 0.1
    variational_dropout: bool = False
    weight_decay: float = 0.01
    loss_scale: float = 1.0
    max_gradient_norm: float = 1.0
    spike: float = 1.0
    max_rollbacks: int = 5
    vocabulary_size: int = 30_000
    min_count: int = 2
    softmax: dict[str, Any] = field(default_factory=_adaptive)
    precision: Precision = "float32"
    recurrence: Recurrence = "steps"
    seed: int = 0
    evaluate_every: int = 1000
    save_every: int = 500
    save_minutes: float = 30.0
    keep: int = 2

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            self._require(name, is_whole(getattr(self, name), least), f"a whole number from {least} to 2**63 - 1")
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            self._require(name, is_number(value) and value > 0, "a number above 0")
        for name in _FROM_ZERO:
            value = getattr(self, name)
            self._require(name, is_number(value) and value >= 0, "a number from 0 up")
        for name in ("layer_rate_decay", "plateau_factor"):
            value = getattr(self, name)
            self._require(name, is_number(value) and 0 < value <= 1, "a number above 0 and at most 1")
        self._require("dropout", is_number(self.dropout) and 0 <= self.dropout < 1, "a number from 0 up and below 1")
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal:
                self._require(name, getattr(self, name) in get_args(hint), f"one of {list(get_args(hint))}")
            elif hint is bool:
                self._require(name, isinstance(getattr(self, name), bool), "true or false")
        self._require("softmax", is_head(self.softmax), EXPECTED)

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

    @property
    def streams(self) -> int:
        """Streams that a batch holds windows of."""
        return max(1, self.batch_words // self.unroll)

    def _require(self, name: str, condition: bool, expected: str) -> None:
        if not condition:
            raise TrainingError(Errors.E216.format(name=name, value=getattr(self, name), expected=expected))
