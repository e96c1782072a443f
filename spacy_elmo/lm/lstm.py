"""The projected LSTM of a biLM, with clips, over packed sentences (Sak et al. 2014; Peters et al. 2018, section 3.4).

For the layer input x_t, the projected state h and the cell c, with the forget bias 1 added at run time:

    i, f, o, j = x_t · W_in + h · W_rec + b
    c ← clip(σ(f + 1) ⊙ c + σ(i) ⊙ tanh(j), ±cell_clip)
    h ← clip((σ(o) ⊙ tanh(c)) · W_proj, ±projection_clip)

Without gradients the cell is updated in place and the gates exist for a few time steps only, so that the memory does not
grow with the length of a sentence beyond its output. With gradients one function holds the whole layer, its backward pass
written out, since a graph node per operation and step would cost more than the arithmetic.

What a step does to gates and cell can be compiled, see `compiled_cell`. Without clips torch's own LSTM computes the same as
all steps, see `fused_lstm`; where it has one kernel for them, that is faster.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from ..errors import ConfigError, Errors, detail_of
from .batching import Packing
from .config import BiLMConfig
from .fused_lstm import run_fused
from .lstm_function import LayerFunction, last_rows
from .packed import PackedWeight

FORGET_BIAS = 1.0

Recurrence = Literal["steps", "compiled", "fused"]

# Values of gates that are computed ahead of the recurrence: large enough for fast matrix products, small enough for caches.
_GATES_AHEAD = 4_194_304
# Values of gates kept for distinct words, to be gathered instead of computed once per occurrence.
_GATES_OF_WORDS = 67_108_864


class LayerState(NamedTuple):
    """cell: (rows, cells); hidden: (rows, projection)."""

    cell: Tensor
    hidden: Tensor


class ProjectedLSTM(nn.Module):
    """One layer of one direction.

    config (BiLMConfig): Shape and clips.
    """

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        self._recurrence: Recurrence = "steps"
        self.cell_clip = config.cell_clip
        # As in TensorFlow, the clip belongs to the projection and is gone with it.
        self.projection_clip = config.projection_clip if config.has_lstm_projection else None
        cells, projection = config.cells, config.projection
        kernel = torch.empty(2 * projection, 4 * cells)
        nn.init.xavier_uniform_(kernel)
        self.input_weight = nn.Parameter(kernel[:projection].clone())
        self.recurrent_weight = nn.Parameter(kernel[projection:].clone())
        self.bias = nn.Parameter(torch.zeros(4 * cells))
        self.projection_weight = None
        if config.has_lstm_projection:
            self.projection_weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(cells, projection)))
        self._packed_recurrent, self._packed_projection = PackedWeight(), PackedWeight()

    @property
    def recurrence(self) -> Recurrence:
        """How the layer runs: "steps", as written here; "compiled", the same, but with gradients by loops that numba compiles
        for the CPU; or "fused", torch's own LSTM, which knows no clips.

        RAISES (ConfigError): When set: E001 if it is unknown, E020 if it is "fused" and there are clips, E025, E026 as
            `require_compiler` if it is "compiled".
        """
        return self._recurrence

    @recurrence.setter
    def recurrence(self, kind: Recurrence) -> None:
        known = get_args(Recurrence)
        if kind not in known:
            raise ConfigError(Errors.E001.format(name="recurrence", value=kind, expected=f"one of {known}"))
        clips = {"cell_clip": self.cell_clip, "projection_clip": self.projection_clip}
        cells, projection = self.bias.shape[0] // 4, self.input_weight.shape[0]
        if kind == "fused" and (any(clip is not None for clip in clips.values()) or projection > cells):
            raise ConfigError(Errors.E020.format(**clips, cells=cells, projection=projection))
        if kind == "compiled":
            require_compiler(self.bias.device)
        self._recurrence = kind

    def forward(
        self, inputs: Tensor, packing: Packing, state: LayerState, rows: Tensor | None = None
    ) -> tuple[Tensor, LayerState]:
        """Run the layer over packed sentences.

        inputs (Tensor): (places, projection), one vector for each place of the packing; or, with `rows`, one vector for
            each distinct word.
        packing (Packing): The layout; its rows are the first rows of `state`.
        state (LayerState): Where each row starts.
        rows (Tensor | None): int64, (places,): the row of `inputs` for each place.
        RETURNS (tuple[Tensor, LayerState]): Outputs, (places, projection), and where each row ended.
        """
        bias = self.bias + _forget_bias(self.bias)
        weights = (self.input_weight, self.recurrent_weight, bias, self.projection_weight)
        if self._recurrence == "fused" and packing.sizes:
            inputs = inputs if rows is None else inputs.index_select(0, rows)
            outputs, cell, hidden = run_fused(inputs, weights, state, packing.sizes)
            return outputs, LayerState(cell, hidden)
        if torch.is_grad_enabled():
            inputs = inputs if rows is None else inputs.index_select(0, rows)
            outputs, cell, hidden = LayerFunction.apply(  # type: ignore[no-untyped-call]
                inputs, *weights, *state, packing, self.cell_clip, self.projection_clip, self._recurrence == "compiled"
            )
            return outputs, LayerState(cell, hidden)
        with torch.autocast(bias.device.type, enabled=False):
            return self._infer(inputs, packing, state, rows, bias)

    def _infer(
        self, inputs: Tensor, packing: Packing, state: LayerState, rows: Tensor | None, bias: Tensor
    ) -> tuple[Tensor, LayerState]:
        n_gates = bias.shape[0]
        places = packing.forward.shape[0]
        if rows is not None and inputs.shape[0] < places and inputs.shape[0] * n_gates <= _GATES_OF_WORDS:
            gates_of_words: Tensor | None = torch.addmm(bias, inputs, self.input_weight)
        else:
            gates_of_words = None
            inputs = inputs if rows is None else inputs.index_select(0, rows)
        outputs = inputs.new_empty(places, state.hidden.shape[1])
        cell, hidden = state.cell.clone(), state.hidden
        start = 0
        for sizes in _chunks(packing.sizes, max(1, _GATES_AHEAD // n_gates)):
            end = start + sum(sizes)
            if gates_of_words is None or rows is None:
                gates = torch.addmm(bias, inputs[start:end], self.input_weight)
            else:
                gates = gates_of_words.index_select(0, rows[start:end])
            hidden = self._recur(gates, sizes, cell, hidden, outputs[start:end])
            start = end
        return outputs, LayerState(cell, last_rows(outputs, packing, state.hidden))

    def _recur(self, gates: Tensor, sizes: list[int], cell: Tensor, hidden: Tensor, outputs: Tensor) -> Tensor:
        """Run some time steps in place, writing `cell` and `outputs`; the hidden state of the last step comes back."""
        cells = cell.shape[1]
        steps = zip(gates.split(sizes), outputs.split(sizes))
        for step_gates, output in steps:
            active = step_gates.shape[0]
            step_gates.add_(self._packed_recurrent.multiply(hidden[:active], self.recurrent_weight))
            sigmoids = step_gates[:, : 3 * cells].sigmoid_()
            candidate = step_gates[:, 3 * cells :].tanh_()
            step_cell = cell[:active]
            step_cell.mul_(sigmoids[:, cells : 2 * cells]).addcmul_(sigmoids[:, :cells], candidate)
            if self.cell_clip is not None:
                step_cell.clamp_(-self.cell_clip, self.cell_clip)
            if self.projection_weight is None:
                torch.mul(torch.tanh(step_cell), sigmoids[:, 2 * cells :], out=output)
            else:
                squashed = torch.tanh(step_cell).mul_(sigmoids[:, 2 * cells :])
                output.copy_(self._packed_projection.multiply(squashed, self.projection_weight))
                if self.projection_clip is not None:
                    output.clamp_(-self.projection_clip, self.projection_clip)
            hidden = output
        return hidden


def require_compiler(device: torch.device) -> None:
    """Make sure that a layer on a device can be compiled.

    device (torch.device): That of the biLM.
    RAISES (ConfigError): E025 if it is no CPU, E026 if numba is not there or does not work.
    """
    if device.type != "cpu":
        raise ConfigError(Errors.E025.format(device=device))
    try:
        from . import compiled_cell  # noqa: F401
    except Exception as error:  # what it says of a NumPy or a system library that does not fit is of any kind
        raise ConfigError(Errors.E026.format(problem=detail_of(error))) from error


def _forget_bias(bias: Tensor) -> Tensor:
    offset = torch.zeros_like(bias)
    cells = bias.shape[0] // 4
    offset[cells : 2 * cells] = FORGET_BIAS
    return offset


def _chunks(sizes: list[int], max_rows: int) -> list[list[int]]:
    """Cut time steps into runs of about `max_rows` rows."""
    chunks: list[list[int]] = [[]]
    rows = 0
    for size in sizes:
        if chunks[-1] and rows + size > max_rows:
            chunks.append([])
            rows = 0
        chunks[-1].append(size)
        rows += size
    return chunks if sizes else []
