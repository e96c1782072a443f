"""Which precision matrix products run in, and what becomes of them."""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def products_in(precision: str, device: torch.device) -> torch.autocast:
    """RETURNS (autocast): Within it, matrix products on the device have this precision: "float32", "bfloat16", "float16"."""
    low = _LOW.get(precision)
    return torch.autocast(device.type, low, enabled=low is not None)


def product_dtype(like: Tensor) -> torch.dtype:
    """RETURNS (torch.dtype): Of matrix products here and now: that of autocast where it is on, else that of the tensor."""
    device = like.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else like.dtype


def is_low(dtype: torch.dtype) -> bool:
    """RETURNS (bool): Whether products of this precision are of a lower one."""
    return dtype in _LOW.values()


def round_up(rows: int, multiple: int) -> int:
    """RETURNS (int): The next multiple."""
    return -(-rows // multiple) * multiple


def rounded_rows(rows: int, like: Tensor, multiple: int = 64) -> int:
    """How many rows a product should have whose number of rows is never the same.

    In a lower precision a CPU makes a kernel for every number of rows, which takes longer than the product itself, and
    keeps it: so rows are rounded up there.

    rows (int): Those there are. like (Tensor): With the device and precision of the weights. multiple (int): Of what.
    RETURNS (int): At least as many.
    """
    return round_up(rows, multiple) if is_low(product_dtype(like)) and like.device.type == "cpu" else rows


def with_rows(values: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """RETURNS (Tensor): (rows, width), in another precision: the values, and rows of zeros after them."""
    if len(values) == rows:
        return values.to(dtype)
    padded = values.new_empty(rows, values.shape[1], dtype=dtype)
    padded[: len(values)].copy_(values)
    padded[len(values) :].zero_()
    return padded


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """left · right, added to `total`, which may have a higher precision."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(torch.mm(left, right))
