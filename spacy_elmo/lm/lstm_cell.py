"""What one step of the LSTM does to gates and cell, and its gradient, operation by operation: `lstm` has the equations."""

from __future__ import annotations

import torch
from torch import Tensor


def step(
    z: Tensor, forget: Tensor, before: Tensor, clip: float | None, c: Tensor, tanh_c: Tensor, squashed: Tensor
) -> None:
    """From what opens the gates to the cell, and to what is projected.

    z (Tensor): (rows, 4 · cells), what opens the gates i, f, o, j: i, o and j take its place, f does not need to.
    forget (Tensor): (rows, cells), where the forget gate goes; it may be that part of z.
    before (Tensor): (rows, cells), the cell of the step before.
    clip (float | None): Bound of the cell.
    c, tanh_c, squashed (Tensor): (rows, cells), where the cell goes, its tanh, and that times the output gate.
    """
    i, f, o, j = z.chunk(4, 1)
    torch.sigmoid(f.to(forget.dtype), out=forget)
    i.sigmoid_()
    o.sigmoid_()
    # The CPU is slow at the tanh of a lower precision.
    torch.tanh(j.to(c.dtype), out=j)
    torch.mul(before, forget, out=c).add_(i * j)
    if clip is not None:
        c.clamp_(-clip, clip)
    torch.tanh(c, out=tanh_c)
    torch.mul(tanh_c, o, out=squashed)


def step_back(
    d_squashed: Tensor,
    dc: Tensor,
    z: Tensor,
    forget: Tensor,
    before: Tensor,
    clip: float | None,
    c: Tensor,
    tanh_c: Tensor,
    dz: Tensor,
) -> None:
    """From the gradients of what is projected and of the cell to those of what opens the gates, and of the cell before.

    d_squashed (Tensor): (rows, cells), the gradient of what is projected.
    dc (Tensor): (rows, cells), the gradient of the cell; that of the cell before takes its place.
    z, forget, before, clip, c, tanh_c: As `step` left them.
    dz (Tensor): (rows, 4 · cells), where the gradient of what opens the gates goes.
    """
    i, _, o, j = z.chunk(4, 1)
    d_i, d_f, d_o, d_j = dz.chunk(4, 1)
    tanh_backward, sigmoid_backward = torch.ops.aten.tanh_backward, torch.ops.aten.sigmoid_backward
    dc.add_(tanh_backward(d_squashed * o, tanh_c))
    mask_clipped(dc, c, clip)
    low_dc = dc.to(z.dtype)
    sigmoid_backward.grad_input(low_dc * j, i, grad_input=d_i)
    d_f.copy_(sigmoid_backward(dc * before, forget))
    sigmoid_backward.grad_input(d_squashed * tanh_c, o, grad_input=d_o)
    tanh_backward.grad_input(low_dc * i, j, grad_input=d_j)
    dc.mul_(forget)


def mask_clipped(gradient: Tensor, clipped: Tensor, clip: float | None) -> None:
    """What was clipped passes no gradient on.

    gradient, clipped (Tensor): Of one shape; the first is changed. clip (float | None): The bound of the second.
    """
    if clip is not None:
        within = clipped.to(gradient.dtype)
        torch.ops.aten.hardtanh_backward.grad_input(gradient, within, -clip, clip, grad_input=gradient)
