"""Modules whose weights are to be read: first their shapes alone, then memory for them, never random values; then a check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@contextmanager
def shapes_only() -> Iterator[None]:
    """Modules that are built in here take no memory, whatever their size: they are on the meta device, where tensors have no
    values."""
    with torch.device("meta"), _NothingDrawn():
        yield


def give_memory(module: nn.Module) -> None:
    """Replace all parameters and buffers by ones on the CPU in float32, of any values. (`to_empty` would import sympy.)

    module (nn.Module): Built by `shapes_only`.
    """
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            setattr(part, name, nn.Parameter(_memory_like(parameter), parameter.requires_grad))
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, _memory_like(buffer))


def stored_tensors(module: nn.Module) -> dict[str, Tensor]:
    """RETURNS (dict[str, Tensor]): Parameters and buffers by their names: what is written to a file and read back."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _memory_like(values: Tensor) -> Tensor:
    return torch.empty(values.shape, dtype=torch.float32, device="cpu")


class _NothingDrawn(TorchFunctionMode):
    """Where there are no values, none need be drawn or scaled: torch would import its compiler to find out what comes of it,
    which takes three seconds and 90 MB."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.mul, Tensor.div):
            return torch.empty(args[0].shape)
        if func in (Tensor.normal_, nn.init.normal_):
            return args[0] if args else kwargs["tensor"]
        return torch.empty(*args, **kwargs) if func is torch.randn else func(*args, **kwargs)


def is_finite(values: Tensor) -> bool:
    """RETURNS (bool): Whether there is neither NaN nor infinity among floats; unlike `torch.isfinite` this takes no memory."""
    # Either of the two is NaN if any value is.
    return values.numel() == 0 or all(bound.isfinite() for bound in values.detach().aminmax())
