"""What a training step changes: weights, optimizer and the state of streams; and the step itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..lm.bilm import BiLM, BiLMState, Dropout
from ..lm.precision import products_in
from ..lm.softmax import OutputHead
from ..weights.native import fill
from .distributed import Workers
from .dropout import SeededDropout, VariationalDropout
from .objective import Batch, log_probabilities
from .optimization import build_optimizer, optimizer_tensors, restore_optimizer, set_rate, take_step
from .settings import TrainingSettings

# Of the scale of gradients in float16, as torch's own scaler has them.
_FIRST_SCALE, _GROWTH, _GROWTH_STEPS = 2.0**16, 2.0, 2000


class Measured(NamedTuple):
    """What the last steps were like.

    loss (float): Mean loss of a predicted word, in nats. gradient_norm (float): Mean norm, before it is bounded.
    skipped (int): Steps whose gradients were not finite, of all so far.
    """

    loss: float
    gradient_norm: float
    skipped: int


class Learner:
    """A biLM with its output head, and how they learn.

    bilm (BiLM), head (OutputHead): The model, on the device, the head bound to the biLM.
    settings (TrainingSettings): How; precision, recurrence and parts as they were chosen.
    workers (Workers): The processes of the run.
    """

    def __init__(self, bilm: BiLM, head: OutputHead, settings: TrainingSettings, workers: Workers) -> None:
        self.bilm, self.head, self.settings, self.workers = bilm, head, settings, workers
        self.parameters = [*bilm.parameters(), *head.parameters()]
        self.device = self.parameters[0].device
        self.states: dict[int, BiLMState] = {}
        self._generators = torch.Generator(self.device), torch.Generator()
        self._learns_head_alone: bool | None = None
        # Sums over the steps of a window: loss, norm, steps that were taken; and all steps ever skipped.
        self._sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        self._forget()
        bilm.set_recurrence("steps" if settings.recurrence == "fastest" else settings.recurrence)

    def learn(self, batches: Mapping[int, Batch], places: int, step: int, rate: float) -> None:
        """Do a step: the gradients of all parts together, of all processes, change the weights once.

        Gradients that are not finite change nothing; they are counted.

        batches (Mapping[int, Batch]): The batch of each part that this process has; a part whose text is at its end has
            none.
        places (int): Predicted places of the step, of all processes together.
        step (int): Steps done: it decides dropout and samples.
        rate (float): Learning rate.
        """
        self._choose_what_learns(step)
        self._gradients.zero_()
        for part, batch in batches.items():
            losses = self._losses(part, batch.to(self.device), step)
            share = losses.sum() / (2 * places)
            torch.autograd.backward(share * (self.settings.loss_scale * self._scale[0]))
            self._gradients[-1] += share.detach()
        self.workers.add_up(self._gradients)
        self._update(rate)

    def window(self) -> Measured:
        """Read what was summed up since the last call, which waits for the device.

        RETURNS (Measured): Of the steps since then.
        """
        loss, norm, steps, skipped = self._sums.tolist()
        self._sums[:3] = 0.0
        return Measured(loss / steps if steps else float("nan"), norm / steps if steps else float("nan"), int(skipped))

    def is_finite(self) -> bool:
        """RETURNS (bool): Whether all weights are."""
        return bool(torch.stack([parameter.detach().isfinite().all() for parameter in self.parameters]).all())

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """RETURNS (dict[str, dict[str, Tensor]]): All that is needed to go on, by its parts. Every process must ask."""
        parts = {**self.weights(), "optimizer": optimizer_tensors(self.optimizer)}
        parts["step"] = {"sums": self._sums, "scale": self._scale}
        if self.settings.objective == "streams":
            for name in BiLMState._fields:
                mine = {part: getattr(state, name) for part, state in self.states.items()}
                like = getattr(self._first_state(), name)
                mine = {part: mine.get(part, like) for part in self.workers.parts(self.settings.parts)}
                every = self.workers.collect(mine, self.settings.parts, like)
                parts[f"stream_{name}"] = {str(part): tensor for part, tensor in every.items()}
        return parts

    def weights(self) -> dict[str, dict[str, Tensor]]:
        """RETURNS (dict[str, dict[str, Tensor]]): Those of the biLM and of the head."""
        return {"bilm": self.bilm.state_dict(), "head": self.head.state_dict()}

    def restore(self, parts: Mapping[str, dict[str, Tensor]], source: str) -> None:
        """Take over what `tensors` gave; or, of `weights`, the weights alone."""
        fill(self.bilm, parts["bilm"], source)
        fill(self.head, parts["head"], source)
        if "optimizer" not in parts:
            return
        restore_optimizer(self.optimizer, parts["optimizer"])
        self._sums.copy_(parts["step"]["sums"])
        self._scale.copy_(parts["step"]["scale"])
        if self.settings.objective == "streams":
            for part in self.workers.parts(self.settings.parts):
                state = [parts[f"stream_{name}"][str(part)].to(self.device) for name in BiLMState._fields]
                self.states[part] = BiLMState(*state)

    def take_back(self, parts: Mapping[str, dict[str, Tensor]], source: str) -> None:
        """Take over what `tensors` gave some steps ago, or the weights that a run began with; steps skipped since stay
        counted."""
        skipped = self._sums[3].clone()
        if "optimizer" not in parts:
            self._forget()
        self.restore(parts, source)
        self._sums.zero_()
        self._sums[3] = skipped

    def fingerprint(self) -> int:
        """RETURNS (int): Of all weights, at most 63 bits: it changes with any single bit of them."""
        sums = [parameter.detach().reshape(-1).view(torch.int32).sum() for parameter in self.parameters]
        return int(torch.stack(sums).sum()) & (2**63 - 1)

    def _forget(self) -> None:
        """Be as before the first step, but for the weights."""
        self.optimizer = build_optimizer(self.bilm, self.head, self.settings)
        first_scale = _FIRST_SCALE if self.settings.precision == "float16" else 1.0
        self._scale = torch.tensor([first_scale, 0.0], device=self.device)
        self.states.clear()

    def _losses(self, part: int, batch: Batch, step: int) -> Tensor:
        settings, (masks, samples) = self.settings, self._generators
        for generator in self._generators:
            generator.manual_seed(_seed(settings.seed, step, part))
        dropout: Dropout | None = None
        if settings.dropout:
            dropout = (VariationalDropout if settings.variational_dropout else SeededDropout)(settings.dropout, masks)
        score = partial(self.head.training_log_probabilities, generator=samples)
        state = self.states.get(part) or self._first_state() if settings.objective == "streams" else None
        with products_in(settings.precision, self.device):
            scores, ended = log_probabilities(self.bilm, score, batch, state, dropout)
        if state is not None:
            # A step that is passed over must not spoil those that come next in its stream.
            self.states[part] = BiLMState(*(values.detach().nan_to_num(0.0, 0.0, 0.0) for values in ended))
        return -scores

    def _update(self, rate: float) -> None:
        gradients, loss = self._gradients[:-1], self._gradients[-1]
        norm = torch.linalg.vector_norm(gradients) / self._scale[0]
        finite = norm.isfinite()
        bound = (self.settings.max_gradient_norm / (norm + 1e-6)).clamp(max=1.0)
        set_rate(self.optimizer, rate)
        take_step(self.optimizer, gradients, self._scale[0] / bound, finite)
        taken = torch.stack([loss.double(), norm.double(), torch.ones_like(loss, dtype=torch.float64)])
        self._sums[:3] += torch.where(finite, taken, torch.zeros_like(taken))
        self._sums[3] += ~finite
        if self.settings.precision == "float16":
            self._adapt_scale(finite)

    def _adapt_scale(self, finite: Tensor) -> None:
        scale, good = self._scale
        good = torch.where(finite, good + 1, torch.zeros_like(good))
        grown = torch.where(good >= _GROWTH_STEPS, scale * _GROWTH, scale)
        self._scale = torch.stack([torch.where(finite, grown, scale / _GROWTH), good % _GROWTH_STEPS])

    def _choose_what_learns(self, step: int) -> None:
        """All gradients lie in one tensor, which is added up over processes and measured at once; its last value is the
        loss."""
        head_alone = step < self.settings.head_steps
        if head_alone == self._learns_head_alone:
            return
        self._learns_head_alone = head_alone
        self.bilm.requires_grad_(not head_alone)
        learning: Sequence[nn.Parameter] = [p for p in self.parameters if p.requires_grad]
        self._gradients = torch.zeros(sum(p.numel() for p in learning) + 1, device=self.device)
        for parameter in self.parameters:
            parameter.grad = None
        for parameter, values in zip(learning, self._gradients[:-1].split([p.numel() for p in learning])):
            parameter.grad = values.view_as(parameter)

    def _first_state(self) -> BiLMState:
        """Where streams begin: from zero, as in bilm-tf, wherever sentences begin."""
        config, streams = self.bilm.config, self.settings.streams
        sizes = (config.cells, config.projection)
        return BiLMState(*(torch.zeros(2, config.n_layers, streams, size, device=self.device) for size in sizes))


def _seed(seed: int, step: int, part: int) -> int:
    digest = hashlib.blake2b(f"{seed} {step} {part}".encode(), digest_size=7)
    return int.from_bytes(digest.digest(), "little")
