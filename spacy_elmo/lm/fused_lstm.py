"""torch's own projected LSTM over packed sentences, with the weights of ours: no clips, its own gate order and layout."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

Weights = tuple[Tensor, Tensor, Tensor, Tensor | None]


def run_fused(
    inputs: Tensor, weights: Weights, state: tuple[Tensor, Tensor], sizes: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer over packed sentences.

    inputs (Tensor): (places, projection).
    weights (tuple): Of the input, of the recurrence, the bias with that of the forget gate, and of the projection, as
        `ProjectedLSTM` has them.
    state (tuple[Tensor, Tensor]): (rows, cells) and (rows, projection): where each row starts.
    sizes (list[int]): Active rows of each step, at least one step.
    RETURNS (tuple[Tensor, Tensor, Tensor]): Outputs, (places, projection); cell and hidden state where each row ended.
    """
    cell, hidden = state
    rows = sizes[0]
    start = hidden[:rows].unsqueeze(0).contiguous(), cell[:rows].unsqueeze(0).contiguous()
    # As in the steps: without gradients in the precision of the weights, with them in that of autocast.
    lowered = nullcontext() if torch.is_grad_enabled() else torch.autocast(inputs.device.type, enabled=False)
    with lowered:
        outputs, hidden_end, cell_end = torch._VF.lstm(
            inputs, torch.tensor(sizes), start, _for_torch(weights), True, 1, 0.0, torch.is_grad_enabled(), False
        )
    outputs, hidden_end, cell_end = (part.to(cell.dtype) for part in (outputs, hidden_end[0], cell_end[0]))
    # Rows that have no word keep what they started from.
    return outputs, torch.cat([cell_end, cell[rows:]]), torch.cat([hidden_end, hidden[rows:]])


def _for_torch(weights: Weights) -> list[Tensor]:
    """The weights as torch's LSTM reads them: gates in the order i, f, g, o; (out, in); two biases."""
    input_weight, recurrent_weight, bias, projection_weight = weights
    cells = bias.shape[0] // 4
    input_weight, recurrent_weight, bias = (
        torch.cat([part[..., : 2 * cells], part[..., 3 * cells :], part[..., 2 * cells : 3 * cells]], -1)
        for part in (input_weight, recurrent_weight, bias)
    )
    arranged = [input_weight.t().contiguous(), recurrent_weight.t().contiguous(), bias, torch.zeros_like(bias)]
    return arranged if projection_weight is None else [*arranged, projection_weight.t().contiguous()]
