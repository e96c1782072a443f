"""The functions of `lstm_cell`, each one loop over memory that numba compiles for the CPU at its first call, on one thread.

A step is a small product and then twenty operations on its result, each of which reads and writes memory: a loop that does
them all while a row lies in the nearest cache takes a third of the time.

Weights are of float32, products of float32 or bfloat16; what happens in between is float32. Every row is computed by itself,
and alike: a sentence comes out the same whatever the batch. The gates are exact to some 1e-7 and not to a share of themselves,
since they are computed by tanh: of a gate that is nearly closed there are fewer digits than torch's have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numba import config, njit, types
from numba.extending import overload
from torch import Tensor

_F = TypeVar("_F", bound=Callable[..., Any])

if config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("numba does not compile while NUMBA_DISABLE_JIT is set")

_ONE, _HALF = np.float32(1), np.float32(0.5)
_QUIET_NAN = np.uint16(0x7FC0)
# tanh as a quotient of polynomials in x, odd and even, the highest power first, fitted to the range in which float32 tells
# it from 1 (the one of Eigen, exact to a few units in the last place). At the end of the range it is 1, or a bit more where a
# CPU cannot multiply and add at once.
_RANGE = np.float32(7.99881172180175781)
_ODD = tuple(
    map(
        np.float32,
        (
            -2.76076847742355e-16,
            2.00018790482477e-13,
            -8.60467152213735e-11,
            5.12229709037114e-08,
            1.48572235717979e-05,
            6.37261928875436e-04,
            4.89352455891786e-03,
        ),
    )
)
_EVEN = tuple(map(np.float32, (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)))


def _compiled(function: _F) -> _F:
    # Without the last, a multiplication and the addition to its result are two operations.
    return cast(_F, njit(function, error_model="numpy", nogil=True, fastmath={"contract"}))


def runs(weight: Tensor, products: torch.dtype) -> bool:
    """RETURNS (bool): Whether the functions here are made for such weights, and products of this precision."""
    of_weight = weight.device.type == "cpu" and weight.dtype == torch.float32
    return of_weight and products in (torch.float32, torch.bfloat16)


def step(
    z: Tensor, forget: Tensor, before: Tensor, clip: float | None, c: Tensor, tanh_c: Tensor, squashed: Tensor
) -> None:
    """As `lstm_cell.step`; all are contiguous but `forget` where it is a part of `z`."""
    first, holder = _holder(forget, z)
    _step(_bound(clip), first, *_arrays(z, holder, before, c, tanh_c, squashed))


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
    """As `lstm_cell.step_back`, after the `step` of here."""
    first, holder = _holder(forget, z)
    _step_back(_bound(clip), first, *_arrays(d_squashed, dc, z, holder, before, c, tanh_c, dz))


def _holder(forget: Tensor, z: Tensor) -> tuple[int, Tensor]:
    """What holds the forget gate, contiguous, and its first column there."""
    return (0, forget) if forget.is_contiguous() else (forget.shape[1], z)


def _arrays(*tensors: Tensor) -> list[Any]:
    """NumPy does not know bfloat16: it is handed over as the upper half of the bits of a float32."""
    return [(each.view(torch.uint16) if each.dtype == torch.bfloat16 else each).numpy() for each in tensors]


def _bound(clip: float | None) -> np.float32:
    return np.float32(np.inf if clip is None else clip)


def _read(row: Any, spare: Any) -> Any:
    """What a row in memory says, in float32: the row itself, or `spare` if it is of bfloat16."""


def _room(row: Any, spare: Any) -> Any:
    """Where float32 goes that `_write` brings to a row in memory: the row itself, or `spare` if it is of bfloat16."""


def _write(values: Any, row: Any) -> None:
    """What is in `_room` to the row, rounded to the nearest, ties to even."""


@overload(_read, inline="always")
def _read_by_type(row: Any, spare: Any) -> Callable[[Any, Any], Any]:
    def widen(row: Any, spare: Any) -> Any:
        bits = spare.view(np.uint32)
        for k in range(len(spare)):
            bits[k] = np.uint32(row[k]) << np.uint32(16)
        return spare

    return _first if row.dtype == types.float32 else widen


@overload(_room, inline="always")
def _room_by_type(row: Any, spare: Any) -> Callable[[Any, Any], Any]:
    return _first if row.dtype == types.float32 else _second


@overload(_write, inline="always")
def _write_by_type(values: Any, row: Any) -> Callable[[Any, Any], None]:
    def narrow(values: Any, row: Any) -> None:
        bits = values.view(np.uint32)
        for k in range(len(values)):
            row[k] = _rounded(values[k], bits[k])

    return _nothing if row.dtype == types.float32 else narrow


def _first(row: Any, spare: Any) -> Any:
    return row


def _second(row: Any, spare: Any) -> Any:
    return spare


def _nothing(values: Any, row: Any) -> None:
    pass


@_compiled
def _rounded(x: Any, bits: Any) -> Any:
    """The upper half of the bits of x; the nearest, and of two as near the even one."""
    upper = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.uint16(upper) if x == x else _QUIET_NAN


@_compiled
def _clamp(x: Any, bound: Any) -> Any:
    """What is not a number stays so."""
    x = bound if x > bound else x
    return -bound if x < -bound else x


@_compiled
def _tanh(x: Any) -> Any:
    x = _clamp(x, _RANGE)
    square = x * x
    odd, even = _ODD[0], _EVEN[0]
    for factor in _ODD[1:]:
        odd = odd * square + factor
    for factor in _EVEN[1:]:
        even = even * square + factor
    return _clamp(x * odd / even, _ONE)


@_compiled
def _sigmoid(x: Any) -> Any:
    return _HALF + _HALF * _tanh(_HALF * x)


@_compiled
def _step(clip: Any, first: int, z: Any, forget: Any, before: Any, c: Any, tanh_c: Any, squashed: Any) -> None:
    rows, cells = c.shape
    spare = np.empty((4, cells), np.float32)
    for row in range(rows):
        gates, f, cell, cell_before = z[row], forget[row][first : first + cells], c[row], before[row]
        i, z_f = _read(gates[:cells], spare[0]), _read(gates[cells : 2 * cells], spare[1])
        o, j = _read(gates[2 * cells : 3 * cells], spare[2]), _read(gates[3 * cells :], spare[3])
        for k in range(cells):
            i[k] = _sigmoid(i[k])
        for k in range(cells):
            f[k] = _sigmoid(z_f[k])
        for k in range(cells):
            o[k] = _sigmoid(o[k])
        for k in range(cells):
            j[k] = _tanh(j[k])
        _write(i, gates[:cells])
        _write(o, gates[2 * cells : 3 * cells])
        _write(j, gates[3 * cells :])
        for k in range(cells):
            cell[k] = _clamp(cell_before[k] * f[k] + i[k] * j[k], clip)
        tanh, result = _room(tanh_c[row], spare[0]), _room(squashed[row], spare[1])
        for k in range(cells):
            tanh[k] = _tanh(cell[k])
        for k in range(cells):
            result[k] = tanh[k] * o[k]
        _write(tanh, tanh_c[row])
        _write(result, squashed[row])


@_compiled
def _step_back(
    clip: Any, first: int, d_squashed: Any, dc: Any, z: Any, forget: Any, before: Any, c: Any, tanh_c: Any, dz: Any
) -> None:
    rows, cells = c.shape
    spare = np.empty((9, cells), np.float32)
    for row in range(rows):
        gates, d_gates, f = z[row], dz[row], forget[row][first : first + cells]
        cell, cell_before, d_cell = c[row], before[row], dc[row]
        i, o = _read(gates[:cells], spare[0]), _read(gates[2 * cells : 3 * cells], spare[1])
        j, tanh, d = _read(gates[3 * cells :], spare[2]), _read(tanh_c[row], spare[3]), _read(d_squashed[row], spare[4])
        for k in range(cells):
            into_cell = d_cell[k] + d[k] * o[k] * (_ONE - tanh[k] * tanh[k])
            d_cell[k] = np.float32(0) if cell[k] >= clip or cell[k] <= -clip else into_cell
        d_i, d_f = _room(d_gates[:cells], spare[5]), _room(d_gates[cells : 2 * cells], spare[6])
        d_o, d_j = _room(d_gates[2 * cells : 3 * cells], spare[7]), _room(d_gates[3 * cells :], spare[8])
        for k in range(cells):
            d_i[k] = d_cell[k] * j[k] * i[k] * (_ONE - i[k])
        for k in range(cells):
            d_f[k] = d_cell[k] * cell_before[k] * f[k] * (_ONE - f[k])
        for k in range(cells):
            d_o[k] = d[k] * tanh[k] * o[k] * (_ONE - o[k])
        for k in range(cells):
            d_j[k] = d_cell[k] * i[k] * (_ONE - j[k] * j[k])
        for k in range(cells):
            d_cell[k] *= f[k]
        _write(d_i, d_gates[:cells])
        _write(d_f, d_gates[cells : 2 * cells])
        _write(d_o, d_gates[2 * cells : 3 * cells])
        _write(d_j, d_gates[3 * cells :])
