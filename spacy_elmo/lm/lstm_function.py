"""The projected LSTM over packed sentences with its gradient, for training: `lstm` has the equations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import lstm_cell
from .batching import Packing
from .precision import is_low, product_dtype, round_up, rounded_rows, with_rows

# Products of lower precision have their rows rounded up to multiples of these, see `rounded_rows`.
_ROWS_OF_A_STEP = 16
_ROWS_OF_ALL = 256
# The column that reads the bias, and zeros beside it, so that the width stays what kernels like.
_COLUMNS_OF_BIAS = 32


class LayerFunction(torch.autograd.Function):
    """The layer with its gradient: one node of the graph.

    Under autocast the matrix products and most of what is kept for the gradient are in the lower precision; the cell and its
    forget gate, where little errors add up over a sentence, and sums over places are in that of the weights.
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
        compiled: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        n_places, n_cells, low = len(inputs), cell.shape[1], product_dtype(bias)
        functions = _functions_of_cell(compiled, bias, low)
        cell = cell.contiguous()
        multiple = rounded_rows(1, bias, _ROWS_OF_A_STEP)
        n_rows = rounded_rows(n_places + multiple - 1, bias, _ROWS_OF_ALL)
        inputs = _with_ones(inputs, n_rows, low)
        input_weight, recurrent_weight = _with_bias(input_weight, bias, low), recurrent_weight.to(low)
        projection_weight = None if projection_weight is None else projection_weight.to(low)
        # Products of more rows than are active run into the places of the next step: each is harmless there.
        gates = inputs @ input_weight
        squashed, outputs = (inputs.new_empty(n_rows, width) for width in (n_cells, hidden.shape[1]))
        squashed[n_places:].zero_()
        cells, tanh_cells = cell.new_empty(n_places, n_cells), inputs.new_empty(n_places, n_cells)
        forgets = gates[:n_places, n_cells : 2 * n_cells] if low == bias.dtype else torch.empty_like(cells)
        step_cell, before = cell, inputs.new_zeros(round_up(len(hidden), multiple), hidden.shape[1])
        before[: len(hidden)].copy_(hidden)
        for place, _ in _places(packing.sizes):
            active = place.stop - place.start
            rounded = slice(place.start, place.start + round_up(active, multiple))
            # To the gates of the next step nothing is added: rows that are not active are zero here.
            before[active:].zero_()
            gates[rounded].addmm_(before[: rounded.stop - rounded.start], recurrent_weight)
            output, c = outputs[place], cells[place]
            result = output if projection_weight is None else squashed[place]
            before_cell = step_cell[:active]
            functions.step(gates[place], forgets[place], before_cell, cell_clip, c, tanh_cells[place], result)
            if projection_weight is not None:
                # What this writes to the places of the next step, the next step writes anew.
                torch.mm(squashed[rounded], projection_weight, out=outputs[rounded])
                if projection_clip is not None:
                    output.clamp_(-projection_clip, projection_clip)
            before[:active].copy_(output)
            step_cell = c
        weights = input_weight, recurrent_weight, projection_weight
        ctx.save_for_backward(inputs, *weights, cell, hidden, gates, forgets, cells, tanh_cells, squashed, outputs)
        ctx.multiple, ctx.packing, ctx.functions = multiple, packing, functions
        ctx.cell_clip, ctx.projection_clip = _rounded(cell_clip, cell.dtype), _rounded(projection_clip, low)
        return outputs[:n_places].to(bias.dtype), last_rows(cells, packing, cell), last_rows(outputs, packing, hidden)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor, d_cell_end: Tensor, d_hidden_end: Tensor) -> tuple[Tensor | None, ...]:
        inputs, input_weight, recurrent_weight, projection_weight, *saved = ctx.saved_tensors
        cell, hidden, gates, forgets, cells, tanh_cells, squashed, outputs = saved
        packing: Packing = ctx.packing
        n_places, low, multiple, n_rows = len(cells), input_weight.dtype, ctx.multiple, len(gates)
        d_cell = d_cell_end.clone(memory_format=torch.contiguous_format)
        d_hidden, d_projected = d_hidden_end.clone(), d_outputs.clone()
        d_gates, d_step = torch.empty_like(gates), outputs.new_zeros(round_up(len(hidden), multiple), hidden.shape[1])
        d_gates[n_places:].zero_()
        projection_transposed = None if projection_weight is None else projection_weight.t().contiguous()
        recurrent_transposed = recurrent_weight.t().contiguous()
        for place, previous in _places(packing.sizes, backwards=True):
            active = place.stop - place.start
            n_rounded = round_up(active, multiple)
            dh = d_projected[place].add_(d_hidden[:active])
            lstm_cell.mask_clipped(dh, outputs[place], ctx.projection_clip)
            d_step[:active].copy_(dh)
            dm = d_step[:active]
            if projection_transposed is not None:
                dm = torch.mm(d_step[:n_rounded], projection_transposed)[:active]
            before = cell[:active] if previous is None else cells[previous]
            kept = gates[place], forgets[place], before, ctx.cell_clip, cells[place], tanh_cells[place]
            ctx.functions.step_back(dm, d_cell[:active], *kept, d_gates[place])
            d_before = torch.mm(d_gates[place.start : place.start + n_rounded], recurrent_transposed)
            d_hidden[:active].copy_(d_before[:active])
        rows = packing.last.shape[0]
        of_no_place = outputs.new_zeros(n_rows - n_places, hidden.shape[1])
        hidden_before = torch.cat([hidden[:rows].to(low), outputs.index_select(0, packing.previous), of_no_place])
        d_projection_weight = None
        if projection_weight is not None:
            d_projection_weight = _over_places(with_rows(d_projected, n_rows, low), squashed).t().to(cell.dtype)
        # One product reads the gates once for three gradients.
        d_weights = _over_places(torch.cat([inputs, hidden_before], 1), d_gates).to(cell.dtype)
        width = input_weight.shape[0] - _COLUMNS_OF_BIAS
        d_input_weight, d_bias, d_recurrent_weight = d_weights.split([width, _COLUMNS_OF_BIAS, hidden.shape[1]])
        d_inputs = (d_gates @ input_weight[:width].t())[:n_places].to(cell.dtype)
        d_layer = d_inputs, d_input_weight, d_recurrent_weight, d_bias[0], d_projection_weight, d_cell, d_hidden
        return *d_layer, None, None, None, None


def _functions_of_cell(compiled: bool, weight: Tensor, products: torch.dtype) -> ModuleType:
    if compiled:
        from . import compiled_cell

        if compiled_cell.runs(weight, products):
            return compiled_cell
    return lstm_cell


def last_rows(values: Tensor, packing: Packing, start: Tensor) -> Tensor:
    """The last value of each row; rows that have no word keep what they started from."""
    ended = values.index_select(0, packing.last)
    return torch.cat([ended, start[len(ended) :]])


def _with_ones(values: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """More rows, of zeros, and more columns, of which the first is of ones: it reads the bias, see `_with_bias`."""
    n_values, width = values.shape
    wider = values.new_zeros(rows, width + _COLUMNS_OF_BIAS, dtype=dtype)
    wider[:n_values, :width].copy_(values)
    wider[:n_values, width].fill_(1)
    return wider


def _with_bias(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """The bias as a further row of the weight, so that it costs no pass over all gates of its own."""
    taller = weight.new_zeros(weight.shape[0] + _COLUMNS_OF_BIAS, weight.shape[1], dtype=dtype)
    taller[: len(weight)].copy_(weight)
    taller[len(weight)].copy_(bias)
    return taller


def _over_places(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ · right. In a lower precision a CPU is slow at it where the left one is only a view of what lies otherwise."""
    transposed = left.t()
    return (transposed.contiguous() if is_low(left.dtype) and left.device.type == "cpu" else transposed) @ right


def _rounded(clip: float | None, dtype: torch.dtype) -> float | None:
    """What values of a precision are clipped to."""
    return None if clip is None else torch.tensor(clip, dtype=dtype).item()


def _places(sizes: list[int], backwards: bool = False) -> Iterator[tuple[slice, slice | None]]:
    """Step by step: its places, and those of the same rows one step before."""
    ends = list(accumulate(sizes))
    for step in reversed(range(len(sizes))) if backwards else range(len(sizes)):
        start = ends[step] - sizes[step]
        before = start - sizes[step - 1]
        yield slice(start, ends[step]), slice(before, before + sizes[step]) if step else None
