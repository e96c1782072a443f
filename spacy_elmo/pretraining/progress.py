"""How far a training run is, apart from its weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from .batches import Position
from .stability import LossGuard, Plateau


@dataclass
class Progress:
    """What a checkpoint holds beside tensors.

    step (int): Steps done.
    words (int): Words read, over all epochs.
    words_an_epoch (int): Words of the corpus.
    position (Position): How far the text is read.
    rate_factor (float): What spikes and plateaus have made of the learning rate.
    rollbacks (int): How often a spike took the run back.
    rolled_back_at (int): Steps done when it last did.
    measured (int | None): Lines of `metrics.jsonl`, all of which are of these weights' past.
    guard (LossGuard): The running mean of the loss.
    plateau (Plateau): The best evaluation.
    seconds (float): Time of training, as far as the last checkpoint.
    """

    step: int = 0
    words: int = 0
    words_an_epoch: int = 0
    position: Position = Position()
    rate_factor: float = 1.0
    rollbacks: int = 0
    rolled_back_at: int = 0
    measured: int | None = None
    guard: LossGuard = field(default_factory=lambda: LossGuard(0.0))
    plateau: Plateau = field(default_factory=Plateau)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """RETURNS (dict): The same in JSON's types."""
        return {**asdict(self), "position": list(self.position)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Progress:
        """RETURNS (Progress): From what `to_dict` gave; what else is there is left out."""
        own = {setting.name: values[setting.name] for setting in fields(cls) if setting.name in values}
        own["position"] = Position(*own["position"])
        own["guard"], own["plateau"] = LossGuard(**own["guard"]), Plateau(**own["plateau"])
        return cls(**own)
