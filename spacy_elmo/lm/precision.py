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


def multiply_into(product: Tensor, left: Tensor, right: Tensor) -> None:
    """left · right, written to `product`, which may have a higher precision."""
    if product.dtype == left.dtype:
        torch.mm(left, right, out=product)
    else:
        product.copy_(torch.mm(left, right))


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """left · right, added to `total`, which may have a higher precision."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(torch.mm(left, right))
