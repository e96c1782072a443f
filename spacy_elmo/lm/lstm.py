"""The projected LSTM of a biLM, with clips, over packed sentences (Sak et al. 2014; Peters et al. 2018, section 3.4).

For the layer input x_t, the projected state h and the cell c, with the forget bias 1 added at run time:

    i, f, o, j = x_t · W_in + h · W_rec + b
    c ← clip(σ(f + 1) ⊙ c + σ(i) ⊙ tanh(j), ±cell_clip)
    h ← clip((σ(o) ⊙ tanh(c)) · W_proj, ±projection_clip)

Without gradients the cell is updated in place and the gates exist for a few time steps only, so that the memory does not
grow with the length of a sentence beyond its output. With gradients one function holds the whole layer, its backward pass
written out, since a graph node per operation and step would cost more than the arithmetic.
"""

from __future__ import annotations

from itertools import accumulate, chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .batching import Packing
from .config import BiLMConfig

FORGET_BIAS = 1.0

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
        if torch.is_grad_enabled():
            inputs = inputs if rows is None else inputs.index_select(0, rows)
            weights = (self.input_weight, self.recurrent_weight, bias, self.projection_weight)
            outputs, cell, hidden = _LayerFunction.apply(
                inputs, *weights, *state, packing, self.cell_clip, self.projection_clip
            )
            return outputs, LayerState(cell, hidden)
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
        return outputs, LayerState(cell, _last_hidden(outputs, packing, state))

    def _recur(self, gates: Tensor, sizes: list[int], cell: Tensor, hidden: Tensor, outputs: Tensor) -> Tensor:
        """Run some time steps in place, writing `cell` and `outputs`; the hidden state of the last step comes back."""
        cells = cell.shape[1]
        steps = zip(gates.split(sizes), outputs.split(sizes))
        for step_gates, output in steps:
            active = step_gates.shape[0]
            step_gates.addmm_(hidden[:active], self.recurrent_weight)
            sigmoids = step_gates[:, : 3 * cells].sigmoid_()
            candidate = step_gates[:, 3 * cells :].tanh_()
            step_cell = cell[:active]
            step_cell.mul_(sigmoids[:, cells : 2 * cells]).addcmul_(sigmoids[:, :cells], candidate)
            if self.cell_clip is not None:
                step_cell.clamp_(-self.cell_clip, self.cell_clip)
            if self.projection_weight is None:
                torch.mul(torch.tanh(step_cell), sigmoids[:, 2 * cells :], out=output)
            else:
                torch.tanh(step_cell, out=candidate).mul_(sigmoids[:, 2 * cells :])
                torch.mm(candidate, self.projection_weight, out=output)
                if self.projection_clip is not None:
                    output.clamp_(-self.projection_clip, self.projection_clip)
            hidden = output
        return hidden


class _LayerFunction(torch.autograd.Function):
    """The layer with its gradient: one node of the graph."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        input_weight: Tensor,
        recurrent_weight: Tensor,
        bias: Tensor,
        projection_weight: Tensor | None,
        cell: Tensor,
        hidden: Tensor,
        packing: Packing,
        cell_clip: float | None,
        projection_clip: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        n_cells = cell.shape[1]
        gates = torch.addmm(bias, inputs, input_weight)
        cells = gates.new_empty(gates.shape[0], n_cells)
        tanh_cells = torch.empty_like(cells)
        outputs = gates.new_empty(gates.shape[0], hidden.shape[1])
        step_cell, step_hidden = cell, hidden
        for z, c, tanh_c, output in zip(*(packed.split(packing.sizes) for packed in (gates, cells, tanh_cells, outputs))):
            active = z.shape[0]
            z.addmm_(step_hidden[:active], recurrent_weight)
            sigmoids, candidate = z[:, : 3 * n_cells].sigmoid_(), z[:, 3 * n_cells :].tanh_()
            torch.mul(step_cell[:active], sigmoids[:, n_cells : 2 * n_cells], out=c)
            c.addcmul_(sigmoids[:, :n_cells], candidate)
            if cell_clip is not None:
                c.clamp_(-cell_clip, cell_clip)
            torch.tanh(c, out=tanh_c)
            if projection_weight is None:
                torch.mul(tanh_c, sigmoids[:, 2 * n_cells :], out=output)
            else:
                torch.mm(tanh_c * sigmoids[:, 2 * n_cells :], projection_weight, out=output)
                if projection_clip is not None:
                    output.clamp_(-projection_clip, projection_clip)
            step_cell, step_hidden = c, output
        ctx.save_for_backward(
            inputs, input_weight, recurrent_weight, projection_weight, cell, hidden, gates, cells, tanh_cells, outputs
        )
        ctx.packing, ctx.cell_clip, ctx.projection_clip = packing, cell_clip, projection_clip
        ended = _last_hidden(cells, packing, LayerState(cell, cell)), _last_hidden(outputs, packing, LayerState(cell, hidden))
        return outputs, *ended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor, d_cell_end: Tensor, d_hidden_end: Tensor) -> tuple[Tensor | None, ...]:
        inputs, input_weight, recurrent_weight, projection_weight, cell, hidden, gates, cells, tanh_cells, outputs = (
            ctx.saved_tensors
        )
        packing: Packing = ctx.packing
        n_cells, rows = cell.shape[1], packing.last.shape[0]
        d_cell, d_hidden = d_cell_end.clone(), d_hidden_end.clone()
        # What is not clipped passes the gradient on.
        free_cells = None if ctx.cell_clip is None else cells.abs() < ctx.cell_clip
        d_raw = d_outputs.clone()
        if ctx.projection_clip is not None:
            free_outputs = outputs.abs() < ctx.projection_clip
        d_gates = torch.empty_like(gates)
        transposed = None if projection_weight is None else projection_weight.t().contiguous()
        recurrent_transposed = recurrent_weight.t().contiguous()
        ends = list(accumulate(packing.sizes))
        for step in reversed(range(len(ends))):
            active, end = packing.sizes[step], ends[step]
            place = slice(end - active, end)
            dh = d_raw[place].add_(d_hidden[:active])
            if ctx.projection_clip is not None:
                dh.mul_(free_outputs[place])
            dm = dh if transposed is None else torch.mm(dh, transposed)
            z, dz, tanh_c = gates[place], d_gates[place], tanh_cells[place]
            i, f, o, j = z.split(n_cells, 1)
            di, df, do, dj = dz.split(n_cells, 1)
            torch.mul(dm, tanh_c, out=do)
            dc = d_cell[:active].add_(torch.ops.aten.tanh_backward(dm.mul_(o) if transposed is not None else dm * o, tanh_c))
            if free_cells is not None:
                dc.mul_(free_cells[place])
            previous = cells[end - active - packing.sizes[step - 1] :][:active] if step else cell[:active]
            torch.mul(dc, j, out=di)
            torch.mul(dc, previous, out=df)
            sigmoids = z[:, : 3 * n_cells]
            d_sigmoids = dz[:, : 3 * n_cells]
            torch.ops.aten.sigmoid_backward.grad_input(d_sigmoids, sigmoids, grad_input=d_sigmoids)
            torch.ops.aten.tanh_backward.grad_input(dc * i, j, grad_input=dj)
            dc.mul_(f)
            torch.mm(dz, recurrent_transposed, out=d_hidden[:active])
        before = torch.cat([hidden[:rows], outputs.index_select(0, packing.previous)])
        d_projection = None
        if projection_weight is not None:
            d_projection = tanh_cells.mul(gates[:, 2 * n_cells : 3 * n_cells]).t() @ d_raw
        return (
            d_gates @ input_weight.t(),
            inputs.t() @ d_gates,
            before.t() @ d_gates,
            d_gates.sum(0),
            d_projection,
            d_cell,
            d_hidden,
            None,
            None,
            None,
        )


def _forget_bias(bias: Tensor) -> Tensor:
    offset = torch.zeros_like(bias)
    cells = bias.shape[0] // 4
    offset[cells : 2 * cells] = FORGET_BIAS
    return offset


def _last_hidden(outputs: Tensor, packing: Packing, state: LayerState) -> Tensor:
    """The last output of each row; rows that have no word keep their state."""
    ended = outputs.index_select(0, packing.last)
    return torch.cat([ended, state.hidden[len(ended) :]])


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
