"""Matrix products with a frozen weight and few rows, as each time step of an LSTM has: two to four times faster on a CPU where
oneDNN can lay the weight out for its kernels once, instead of reading it as it lies each time."""

from __future__ import annotations

import torch
from torch import Tensor

# The number of rows that oneDNN is told to expect; it serves any other number as well.
_ROWS_EXPECTED = 64


class PackedWeight:
    """A frozen weight in oneDNN's layout, packed at first use and anew when the weight changes.

    The operators are not part of torch's public interface: where they are missing, the plain product does the same. Copies and
    pickles are empty.
    """

    def __init__(self) -> None:
        self._packed: tuple[tuple[int, int], Tensor | None] | None = None

    def __reduce__(self) -> tuple[type[PackedWeight], tuple[()]]:
        return PackedWeight, ()

    def multiply(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """inputs · weight.

        inputs (Tensor): (rows, in). weight (Tensor): (in, out). RETURNS (Tensor): (rows, out).
        """
        packed = self._pack(weight)
        if packed is None:
            return torch.mm(inputs, weight)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, packed, None, "none", [], "")
        return product

    def _pack(self, weight: Tensor) -> Tensor | None:
        if weight.requires_grad or weight.device.type != "cpu" or weight.dtype is not torch.float32:
            return None
        key = (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        if self._packed is None or self._packed[0] != key:
            self._packed = (key, _reorder(weight))
        return self._packed[1]


def _reorder(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's layout; None if this torch or this machine has no such thing, or gets it wrong."""
    probe = weight[:, 0].unsqueeze(0)
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.t().contiguous(), _ROWS_EXPECTED)
        product = torch.ops.mkldnn._linear_pointwise(probe, packed, None, "none", [], "")
    except (AttributeError, RuntimeError, NotImplementedError):
        return None
    return packed if torch.allclose(product, probe @ weight, rtol=1e-3, atol=1e-3) else None
