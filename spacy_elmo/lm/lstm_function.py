"""The projected LSTM over packed sentences with its gradient, for training: `lstm` has the equations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .batching import Packing
from .precision import product_dtype, rounded_rows

# Products of lower precision have their rows rounded up to multiples of these, see `rounded_rows`.
_ROWS_OF_A_STEP = 16
_ROWS_OF_ALL = 256


class LayerFunction(torch.autograd.Function):
    """The layer with its gradient: one node of the graph.

    Under autocast the matrix products and all that is kept for the gradient are in the lower precision; the cell, its
    gradient and sums over places are in that of the weights.
    """

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
        n_places, n_cells, low = len(inputs), cell.shape[1], product_dtype(bias)
        multiple = rounded_rows(1, bias, _ROWS_OF_A_STEP)
        n_rows = rounded_rows(n_places + multiple - 1, bias, _ROWS_OF_ALL)
        inputs, input_weight, recurrent_weight = (
            _padded(inputs, n_rows, low),
            input_weight.to(low),
            recurrent_weight.to(low),
        )
        projection_weight = None if projection_weight is None else projection_weight.to(low)
        # Products of more rows than are active run into the places of the next step: each is harmless there.
        gates, squashed, outputs = (
            inputs.new_empty(n_rows, width) for width in (4 * n_cells, n_cells, hidden.shape[1])
        )
        torch.addmm(bias.to(low), inputs, input_weight, out=gates)
        squashed[n_places:].zero_()
        cells, tanh_cells = cell.new_empty(n_places, n_cells), inputs.new_empty(n_places, n_cells)
        step_cell, before = cell, _padded(hidden, _round_up(len(hidden), multiple), low)
        for place, _ in _places(packing.sizes):
            active = place.stop - place.start
            rounded = slice(place.start, place.start + _round_up(active, multiple))
            z, c, tanh_c, m, output = gates[place], cells[place], tanh_cells[place], squashed[place], outputs[place]
            # To the gates of the next step nothing is added: rows that are not active are zero here.
            before[active:].zero_()
            gates[rounded].addmm_(before[: rounded.stop - rounded.start], recurrent_weight)
            sigmoids, candidate = z[:, : 3 * n_cells].sigmoid_(), z[:, 3 * n_cells :]
            # The CPU is slow at the tanh of a lower precision.
            torch.tanh(candidate.to(c.dtype), out=candidate)
            torch.mul(step_cell[:active], sigmoids[:, n_cells : 2 * n_cells], out=c)
            c.add_(sigmoids[:, :n_cells] * candidate)
            if cell_clip is not None:
                c.clamp_(-cell_clip, cell_clip)
            torch.tanh(c, out=tanh_c)
            if projection_weight is None:
                torch.mul(tanh_c, sigmoids[:, 2 * n_cells :], out=output)
            else:
                torch.mul(tanh_c, sigmoids[:, 2 * n_cells :], out=m)
                # What this writes to the places of the next step, the next step writes anew.
                torch.mm(squashed[rounded], projection_weight, out=outputs[rounded])
                if projection_clip is not None:
                    output.clamp_(-projection_clip, projection_clip)
            before[:active].copy_(output)
            step_cell = c
        weights = input_weight, recurrent_weight, projection_weight
        ctx.save_for_backward(inputs, *weights, cell, hidden, gates, cells, tanh_cells, squashed, outputs)
        ctx.multiple, ctx.packing, ctx.cell_clip, ctx.projection_clip = multiple, packing, cell_clip, projection_clip
        return outputs[:n_places].to(bias.dtype), last_rows(cells, packing, cell), last_rows(outputs, packing, hidden)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor, d_cell_end: Tensor, d_hidden_end: Tensor) -> tuple[Tensor | None, ...]:
        inputs, input_weight, recurrent_weight, projection_weight, *saved = ctx.saved_tensors
        cell, hidden, gates, cells, tanh_cells, squashed, outputs = saved
        packing: Packing = ctx.packing
        n_places, n_cells, low = len(cells), cell.shape[1], input_weight.dtype
        multiple, n_rows = ctx.multiple, len(gates)
        d_cell, d_hidden, d_projected = d_cell_end.clone(), d_hidden_end.clone(), d_outputs.clone()
        d_gates, d_step = torch.empty_like(gates), outputs.new_zeros(_round_up(len(hidden), multiple), hidden.shape[1])
        d_gates[n_places:].zero_()
        projection_transposed = None if projection_weight is None else projection_weight.t().contiguous()
        recurrent_transposed = recurrent_weight.t().contiguous()
        for place, previous in _places(packing.sizes, backwards=True):
            active = place.stop - place.start
            n_rounded = _round_up(active, multiple)
            dh = d_projected[place].add_(d_hidden[:active])
            _mask_clipped(dh, outputs[place], ctx.projection_clip)
            d_step[:active].copy_(dh)
            dm = d_step[:active]
            if projection_transposed is not None:
                dm = torch.mm(d_step[:n_rounded], projection_transposed)[:active]
            z, tanh_c, dz = gates[place], tanh_cells[place], d_gates[place]
            i, f, o, j = z.split(n_cells, 1)
            torch.mul(dm, tanh_c, out=dz[:, 2 * n_cells : 3 * n_cells])
            dc = d_cell[:active].add_(torch.ops.aten.tanh_backward(dm * o, tanh_c))
            _mask_clipped(dc, cells[place], ctx.cell_clip)
            low_dc = dc.to(low)
            torch.mul(low_dc, j, out=dz[:, :n_cells])
            torch.mul(dc, cell[:active] if previous is None else cells[previous], out=dz[:, n_cells : 2 * n_cells])
            d_sigmoids, d_candidate = dz[:, : 3 * n_cells], dz[:, 3 * n_cells :]
            torch.ops.aten.sigmoid_backward.grad_input(d_sigmoids, z[:, : 3 * n_cells], grad_input=d_sigmoids)
            torch.ops.aten.tanh_backward.grad_input(low_dc * i, j, grad_input=d_candidate)
            dc.mul_(f)
            d_before = torch.mm(d_gates[place.start : place.start + n_rounded], recurrent_transposed)
            d_hidden[:active].copy_(d_before[:active])
        rows = packing.last.shape[0]
        hidden_before = torch.cat([hidden[:rows].to(low), outputs.index_select(0, packing.previous)])
        hidden_before = _padded(hidden_before, n_rows, low)
        d_projection_weight = None
        if projection_weight is not None:
            d_projection_weight = (squashed.t() @ _padded(d_projected, n_rows, low)).to(cell.dtype)
        d_weights = [(part.t() @ d_gates).to(cell.dtype) for part in (inputs, hidden_before)]
        d_inputs = (d_gates @ input_weight.t())[:n_places].to(cell.dtype)
        d_bias = _sum_of_rows(d_gates).to(cell.dtype)
        return d_inputs, *d_weights, d_bias, d_projection_weight, d_cell, d_hidden, None, None, None


def last_rows(values: Tensor, packing: Packing, start: Tensor) -> Tensor:
    """The last value of each row; rows that have no word keep what they started from."""
    ended = values.index_select(0, packing.last)
    return torch.cat([ended, start[len(ended) :]])


def _round_up(rows: int, multiple: int) -> int:
    return -(-rows // multiple) * multiple


def _padded(values: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """With rows of zeros at the end, in another precision."""
    padded = values.new_empty(rows, values.shape[1], dtype=dtype)
    padded[: len(values)].copy_(values)
    padded[len(values) :].zero_()
    return padded


def _sum_of_rows(values: Tensor) -> Tensor:
    """In a lower precision, as a product: it sums in float32, and faster than a sum does."""
    if values.dtype not in (torch.bfloat16, torch.float16):
        return values.sum(0)
    return torch.mm(values.new_ones(_ROWS_OF_A_STEP, len(values)), values)[0]


def _mask_clipped(gradient: Tensor, clipped: Tensor, clip: float | None) -> None:
    """What was clipped passes no gradient on."""
    if clip is not None:
        within = clipped.to(gradient.dtype)
        torch.ops.aten.hardtanh_backward.grad_input(gradient, within, -clip, clip, grad_input=gradient)


def _places(sizes: list[int], backwards: bool = False) -> Iterator[tuple[slice, slice | None]]:
    """Step by step: its places, and those of the same rows one step before."""
    ends = list(accumulate(sizes))
    for step in reversed(range(len(sizes))) if backwards else range(len(sizes)):
        start = ends[step] - sizes[step]
        before = start - sizes[step - 1]
        yield slice(start, ends[step]), slice(before, before + sizes[step]) if step else None
