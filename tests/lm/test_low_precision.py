"""Training with products in bfloat16: it is close to float32, and its products come in few sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spacy_elmo.lm.batching import Packing, pack
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.lstm import LayerState, ProjectedLSTM
from spacy_elmo.lm.precision import products_in, rounded_rows
from spacy_elmo.lm.softmax import build_head
from spacy_elmo.lm.word_encoders import CharacterEncoder

CPU = torch.device("cpu")
SHAPE: dict[str, Any] = {"filters": ((1, 8), (2, 8)), "n_highway": 1, "projection": 8, "cells": 24}
CLIPPED = {"cell_clip": 0.5, "projection_clip": 0.3}
# In bfloat16 0.7 is less.
ROUNDED_CLIP = {"cell_clip": 0.7, "projection_clip": 0.7}
UNPROJECTED = {"cells": 8}
LENGTHS = [5, 1, 40, 17, 3, 3, 0, 2, 30, 1, 1, 8, 9, 9, 9, 9, 9, 9, 1]


class RowsOfProducts(TorchDispatchMode):
    """Notes how many rows the left and the right of each product in bfloat16 have."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if operator.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
            left, right = arguments[-2:]
            if left.dtype == torch.bfloat16:
                self.seen |= {left.shape[0], right.shape[0]}
        return operator(*arguments, **(keywords or {}))


def layer_of(**changes: Any) -> ProjectedLSTM:
    torch.manual_seed(2)
    layer = ProjectedLSTM(BiLMConfig(**{**SHAPE, **changes}))
    torch.nn.init.normal_(layer.bias)
    return layer


def run(layer: ProjectedLSTM, inputs: torch.Tensor, packing: Packing, precision: str) -> list[torch.Tensor]:
    """Outputs, where rows ended, and the gradients of inputs, weights and state."""
    generator = torch.Generator().manual_seed(3)
    sizes = layer.bias.shape[0] // 4, layer.input_weight.shape[0]
    rows = len(packing.order)
    state = LayerState(*(torch.randn(rows, size, generator=generator).requires_grad_() for size in sizes))
    inputs = inputs.clone().requires_grad_()
    with products_in(precision, CPU):
        outputs, ended = layer(inputs, packing, state)
    found = [outputs, *ended]
    total = sum((torch.cos(part) * torch.linspace(0.5, 2, part.numel()).view_as(part)).sum() for part in found)
    return [*(part.detach() for part in found), *torch.autograd.grad(total, [inputs, *layer.parameters(), *state])]


def inputs_of(packing: Packing) -> torch.Tensor:
    return torch.randn(len(packing.forward), 8, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize(
    "changes", [{}, CLIPPED, ROUNDED_CLIP, UNPROJECTED], ids=["plain", "clipped", "clip rounded", "unprojected"]
)
def test_a_layer_and_all_its_gradients_are_close_to_those_of_float32(changes: dict[str, Any]) -> None:
    layer, packing = layer_of(**changes), pack(LENGTHS)
    inputs = inputs_of(packing)
    for found, expected in zip(*(run(layer, inputs, packing, kind) for kind in ("bfloat16", "float32")), strict=True):
        assert found.dtype == expected.dtype == torch.float32
        assert (found - expected).norm() < 0.04 * expected.norm()


def test_a_forget_gate_that_is_nearly_open_still_forgets_and_learns() -> None:
    layer, packing = layer_of(), pack([200])
    with torch.no_grad():
        layer.bias[24:48] = 5.5  # forget about 0.15 % a step
        layer.recurrent_weight.mul_(0.1)
        layer.input_weight.mul_(0.1)
    inputs = inputs_of(packing)
    exact, found = (run(layer, inputs, packing, kind) for kind in ("float32", "bfloat16"))
    bias = [gradients[4 + 2][24:48] for gradients in (exact, found)]
    assert (found[1] - exact[1]).norm() < 0.04 * exact[1].norm()
    assert (bias[1] - bias[0]).norm() < 0.05 * bias[0].norm()


def test_a_sentence_of_a_batch_has_the_outputs_that_it_has_alone() -> None:
    layer, together = layer_of(), pack([9, 4, 1])
    inputs = inputs_of(together)
    # The longest sentence is the first row of every step.
    places = [sum(together.sizes[:step]) for step in range(9)]
    with products_in("bfloat16", CPU):
        found, _ = layer(inputs, together, LayerState(torch.zeros(3, 24), torch.zeros(3, 8)))
        alone, _ = layer(inputs[places], pack([9]), LayerState(torch.zeros(1, 24), torch.zeros(1, 8)))
    torch.testing.assert_close(found[places], alone, atol=0.01, rtol=0.01)


def test_the_products_of_a_layer_have_rounded_rows() -> None:
    layer = layer_of()
    with RowsOfProducts() as rows:
        for lengths in (LENGTHS, [3], [7] * 33):
            run(layer, inputs_of(pack(lengths)), pack(lengths), "bfloat16")
    widths = {8, 24, 8 + 32}
    assert len(rows.seen - widths) >= 4
    assert {number % 16 for number in rows.seen - widths} == {0}, rows.seen


@pytest.mark.parametrize("places", [1, 63, 130])
def test_the_products_of_an_adaptive_head_have_rounded_rows(places: int) -> None:
    head = build_head({"kind": "adaptive", "projection": 8, "n_words": 50, "cutoffs": [10, 20], "shrink": 1.0})
    hidden, words = torch.randn(places, 8, requires_grad=True), torch.arange(places) % 50
    exact = head(hidden, words)
    with RowsOfProducts() as rows, products_in("bfloat16", CPU):
        found = head(hidden, words)
        found.sum().backward()
    assert {number for number in rows.seen if number > 50} <= {64, 128, 192}
    assert rows.seen & {64, 128, 192}
    torch.testing.assert_close(found, exact, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("softmax", [{"kind": "full"}, {"kind": "sampled", "n_samples": 20}], ids=["full", "sampled"])
def test_the_products_of_other_heads_have_rounded_rows(softmax: dict[str, Any]) -> None:
    head = build_head({**softmax, "projection": 8, "n_words": 50})
    hidden, words = torch.randn(71, 8, requires_grad=True), torch.arange(71) % 50
    generator = torch.Generator()
    exact = head.training_log_probabilities(hidden, words, generator.manual_seed(0))
    with RowsOfProducts() as rows, products_in("bfloat16", CPU):
        found = head.training_log_probabilities(hidden, words, generator.manual_seed(0))
    found.sum().backward()
    assert 128 in rows.seen and 71 not in rows.seen
    torch.testing.assert_close(found, exact, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("words", [1, 5, 71])
def test_the_highways_of_the_encoder_have_rounded_rows(words: int) -> None:
    encoder = CharacterEncoder(BiLMConfig(**SHAPE))
    keys = [b"a" * (number % 30 + 1) for number in range(words)]
    exact = encoder.encode(keys)
    with RowsOfProducts() as rows, products_in("bfloat16", CPU):
        found = encoder.encode(keys)
        found.sum().backward()
    assert {64, 128} & rows.seen and words not in rows.seen
    torch.testing.assert_close(found, exact, atol=0.05, rtol=0.02)


def test_rows_are_rounded_in_a_lower_precision_only() -> None:
    weight = torch.zeros(1)
    assert [rounded_rows(rows, weight) for rows in (0, 1, 64, 65)] == [0, 1, 64, 65]
    with products_in("bfloat16", CPU):
        assert [rounded_rows(rows, weight) for rows in (0, 1, 64, 65)] == [0, 64, 64, 128]
        assert rounded_rows(17, weight, 16) == 32
