"""The loops that numba compiles against the operations of torch: outputs, states and all gradients."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.errors import ConfigError
from spacy_elmo.lm import lstm_cell
from spacy_elmo.lm.batching import Packing, pack
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.lstm import LayerState, ProjectedLSTM
from spacy_elmo.lm.precision import products_in
from tests.numba_state import forget_compiled_cell

compiled_cell = pytest.importorskip("spacy_elmo.lm.compiled_cell", reason="needs numba")

CPU = torch.device("cpu")
# Not a multiple of what the CPU computes at once.
SHAPE: dict[str, Any] = {"filters": ((1, 8), (2, 8)), "n_highway": 1, "projection": 8, "cells": 37}
CLIPPED = {"cell_clip": 0.5, "projection_clip": 0.3}
UNCLIPPED = {"cell_clip": None, "projection_clip": None}
UNPROJECTED = {"cells": 8}
LENGTHS = [5, 1, 40, 17, 3, 3, 0, 2, 30, 1, 1, 8, 9, 9, 9, 1]


def layer_of(seed: int = 2, **changes: Any) -> ProjectedLSTM:
    torch.manual_seed(seed)
    layer = ProjectedLSTM(BiLMConfig(**{**SHAPE, **changes}))
    torch.nn.init.normal_(layer.bias)
    return layer


def run(layer: ProjectedLSTM, kind: str, packing: Packing, precision: str = "float32") -> list[torch.Tensor]:
    """Outputs, where rows ended, and the gradients of inputs, weights and state."""
    layer.recurrence = kind
    generator = torch.Generator().manual_seed(3)
    sizes = layer.bias.shape[0] // 4, layer.input_weight.shape[0]
    rows = len(packing.order)
    dtype = layer.bias.dtype
    # The columns lie apart in memory: a state may come in any layout.
    state = [torch.randn(size, rows, generator=generator, dtype=dtype).t().requires_grad_() for size in sizes]
    inputs = torch.randn(len(packing.forward), sizes[1], generator=generator, dtype=dtype).requires_grad_()
    with products_in(precision, CPU):
        outputs, ended = layer(inputs, packing, LayerState(*state))
    found = [outputs, *ended]
    total = sum((torch.cos(part) * torch.linspace(0.5, 2, part.numel()).view_as(part)).sum() for part in found)
    return [*(part.detach() for part in found), *torch.autograd.grad(total, [inputs, *layer.parameters(), *state])]


def calls_of_compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Filled with the names of the functions as they are called."""
    calls: list[str] = []
    for name in ("step", "step_back"):

        def call(*arguments: Any, name: str = name, function: Any = getattr(compiled_cell, name)) -> None:
            calls.append(name)
            function(*arguments)

        monkeypatch.setattr(compiled_cell, name, call)
    return calls


@pytest.mark.parametrize(
    "changes", [{}, CLIPPED, UNCLIPPED, UNPROJECTED], ids=["plain", "clipped", "unclipped", "unprojected"]
)
def test_outputs_and_gradients_are_those_of_the_steps(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    layer, packing = layer_of(**changes), pack(LENGTHS)
    calls = calls_of_compiled(monkeypatch)
    found = run(layer, "compiled", packing)
    assert calls == ["step"] * max(LENGTHS) + ["step_back"] * max(LENGTHS)
    for one, expected in zip(found, run(layer, "steps", packing), strict=True):
        assert (one - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("changes", [{}, CLIPPED, UNPROJECTED], ids=["plain", "clipped", "unprojected"])
def test_in_bfloat16_it_is_no_further_from_float32_than_the_steps(changes: dict[str, Any]) -> None:
    packing, ratios = pack(LENGTHS), []
    for seed in range(5):
        layer = layer_of(seed, **changes)
        compiled, steps = (run(layer, kind, packing, "bfloat16") for kind in ("compiled", "steps"))
        for one, other, exact in zip(compiled, steps, run(layer, "steps", packing), strict=True):
            assert one.dtype == torch.float32
            ratios.append((one - exact).norm() / (other - exact).norm())
    assert torch.stack(ratios).log().mean() < 0.1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_sentence_comes_out_the_same_whatever_the_batch(precision: str) -> None:
    generator = torch.Generator().manual_seed(1)
    dtype = getattr(torch, precision)
    z, before = torch.randn(3, 4 * 37, generator=generator).to(dtype), torch.randn(3, 37, generator=generator)
    together = step_of(z, before)
    for row in range(3):
        for alone, among in zip(step_of(z[row : row + 1], before[row : row + 1]), together, strict=True):
            assert torch.equal(alone, among[row : row + 1])


def step_of(z: torch.Tensor, before: torch.Tensor, clip: float | None = 3.0) -> list[torch.Tensor]:
    """Gates, forget gate, cell, its tanh, and what is projected."""
    z, c = z.clone(), torch.empty_like(before)
    forget, tanh_c, squashed = (
        torch.empty_like(c),
        torch.empty_like(c, dtype=z.dtype),
        torch.empty_like(c, dtype=z.dtype),
    )
    compiled_cell.step(z, forget, before, clip, c, tanh_c, squashed)
    return [z, forget, c, tanh_c, squashed]


def test_tanh_and_sigmoid_are_exact_to_some_units_in_the_last_place() -> None:
    values = np.concatenate([np.linspace(-20, 20, 40_001), np.geomspace(1e-30, 1e-2, 999), [np.inf, -np.inf, 0.0]])
    cells = len(values)
    z = torch.zeros(1, 4 * cells)
    z[0, cells : 2 * cells] = z[0, 3 * cells :] = torch.from_numpy(values)
    gates, forget, *_ = step_of(z, torch.zeros(1, cells))
    values = z[0, 3 * cells :].double()
    torch.testing.assert_close(gates[0, 3 * cells :].double(), values.tanh(), rtol=5e-7, atol=0)
    torch.testing.assert_close(forget[0].double(), values.sigmoid(), rtol=0, atol=2e-7)


def test_open_gates_are_open_and_closed_ones_closed() -> None:
    far = torch.tensor([20.0, -20.0, torch.inf, -torch.inf])
    gates, forget, *_ = step_of(torch.cat([far] * 4).view(1, -1), torch.zeros(1, 4))
    assert gates[0, 12:].tolist() == [1, -1, 1, -1]
    assert forget[0].tolist() == gates[0, :4].tolist() == gates[0, 8:12].tolist() == [1, 0, 1, 0]
    z = torch.linspace(-20, 20, 5001).repeat(4).view(1, -1)
    gates, forget, *_ = step_of(z, torch.zeros(1, 5001))
    assert gates[0, 3 * 5001 :].abs().max() == forget.max() == 1 and forget.min() >= 0


def test_the_forget_gate_may_go_where_what_opens_it_was() -> None:
    z, before = torch.randn(3, 4 * 37), torch.randn(3, 37)
    _, apart, *rest = step_of(z, before)
    c, tanh_c, squashed = (torch.empty_like(before) for _ in range(3))
    compiled_cell.step(z, z[:, 37:74], before, 3.0, c, tanh_c, squashed)
    for found, expected in zip([z[:, 37:74], c, tanh_c, squashed], [apart, *rest], strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("place", range(4), ids=["i", "f", "o", "j"])
def test_what_is_not_a_number_is_not_hidden(place: int, precision: str) -> None:
    z = torch.zeros(1, 4 * 3, dtype=getattr(torch, precision))
    z[0, 3 * place] = torch.nan
    *_, squashed = step_of(z, torch.ones(1, 3))
    assert squashed[0].isnan().tolist() == [True, False, False]


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF])
def test_rounding_makes_no_number_of_what_is_none(bits: int) -> None:
    """In the upper half of its bits some are infinite, and rounded up some would be zero."""
    before = torch.from_numpy(np.array([[bits]], np.uint32).view(np.float32))
    assert step_of(torch.zeros(1, 4, dtype=torch.bfloat16), before)[3].isnan().all()


def test_bfloat16_is_rounded_as_torch_rounds() -> None:
    before, z = torch.randn(1, 5000, generator=torch.Generator().manual_seed(1)), torch.zeros(1, 4 * 5000)
    exact, rounded = step_of(z, before), step_of(z.bfloat16(), before)
    assert torch.equal(rounded[3], exact[3].bfloat16()) and torch.equal(rounded[4], exact[4].bfloat16())


@pytest.mark.parametrize(("value", "bits"), [(1 + 2**-8, 0x3F80), (1 + 3 * 2**-8, 0x3F82), (-1 - 2**-8, 0xBF80)])
def test_in_the_middle_between_two_the_even_one_is_taken(value: float, bits: int) -> None:
    value_as_float = np.float32(value)
    assert compiled_cell._rounded(value_as_float, value_as_float.view(np.uint32)) == bits


def test_gradients_of_values_that_are_not_numbers_are_none() -> None:
    ones = torch.ones(1, 2)
    z, tanh_c, d_squashed = torch.full((1, 8), 0.5), ones / 2, ones.clone()
    d_squashed[0, 0] = torch.nan
    arrived = {}
    for functions in (lstm_cell, compiled_cell):
        dc, dz = ones.clone(), torch.zeros(1, 8)
        functions.step_back(d_squashed, dc, z, ones / 2, ones, 3.0, ones, tanh_c, dz)
        arrived[functions] = torch.cat([dc, dz], 1).isnan()
    assert arrived[compiled_cell].any() and torch.equal(arrived[compiled_cell], arrived[lstm_cell])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_what_it_is_not_made_for_runs_step_by_step(dtype: torch.dtype) -> None:
    layer, packing = layer_of(), pack([4, 2])
    precision = "float16" if dtype == torch.float16 else "float32"
    if dtype == torch.float64:
        layer.double()
    for found, expected in zip(
        run(layer, "compiled", packing, precision), run(layer, "steps", packing, precision), strict=True
    ):
        assert torch.equal(found, expected)


def test_a_whole_model_learns_the_same() -> None:
    torch.manual_seed(5)
    bilm = BiLM(BiLMConfig(**SHAPE))
    found = {}
    for kind in ("steps", "compiled"):
        bilm.set_recurrence(kind)
        bilm.zero_grad()
        layers = bilm([["ab", "c", "ab", "a"], [], ["c"], ["bca", "c"]]).layers
        layers.square().sum().backward()
        found[kind] = [layers.detach(), *(parameter.grad.clone() for parameter in bilm.parameters())]
    assert bilm.recurrence == "compiled"
    for compiled, steps in zip(found["compiled"], found["steps"], strict=True):
        torch.testing.assert_close(compiled, steps, rtol=1e-4, atol=1e-6)


def test_without_gradients_it_changes_nothing() -> None:
    torch.manual_seed(5)
    bilm = BiLM(BiLMConfig(**SHAPE))
    with torch.no_grad():
        expected = bilm([["ab", "c"]]).layers
        bilm.set_recurrence("compiled")
        assert torch.equal(bilm([["ab", "c"]]).layers, expected)


class Broken:
    """A library that does not fit the system."""

    def __getattr__(self, name: str) -> Any:
        raise OSError("could not load its shared object file")


@pytest.mark.parametrize(("is_there", "said"), [(False, "numba"), (True, "shared object")])
def test_without_a_numba_that_works_it_is_refused(is_there: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_compiled_cell(monkeypatch)
    monkeypatch.setitem(sys.modules, "numba", Broken() if is_there else None)
    layer = layer_of()
    with pytest.raises(ConfigError, match=f"E026.*{said}.*'steps'"):
        layer.recurrence = "compiled"
    assert layer.recurrence == "steps"


def test_a_numba_that_does_not_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_compiled_cell(monkeypatch)
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    with pytest.raises(ConfigError, match="E026.*NUMBA_DISABLE_JIT"):
        layer_of().recurrence = "compiled"


def test_on_another_device_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="E025.*meta"):
        layer_of().to("meta").recurrence = "compiled"
