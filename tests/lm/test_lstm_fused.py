"""torch's own LSTM against the steps: outputs, states and all gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spacy_elmo.errors import ConfigError
from spacy_elmo.lm.batching import Packing, pack
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.lstm import LayerState, ProjectedLSTM

UNCLIPPED: dict[str, Any] = {
    "character_dim": 3,
    "filters": ((1, 3), (2, 4)),
    "max_characters": 8,
    "n_highway": 1,
    "projection": 5,
    "cells": 9,
    "cell_clip": None,
    "projection_clip": None,
}
SENTENCES = [["ab", "c", "ab", "a"], [], ["c"], ["bca", "c"]]


def layer_of(**changes: Any) -> ProjectedLSTM:
    torch.manual_seed(2)
    layer = ProjectedLSTM(BiLMConfig(**{**UNCLIPPED, **changes}))
    torch.nn.init.normal_(layer.bias)
    return layer


def start_of(layer: ProjectedLSTM, rows: int) -> LayerState:
    generator = torch.Generator().manual_seed(3)
    sizes = layer.bias.shape[0] // 4, layer.input_weight.shape[0]
    return LayerState(*(torch.randn(rows, size, generator=generator).requires_grad_() for size in sizes))


def run(layer: ProjectedLSTM, kind: str, packing: Packing) -> list[torch.Tensor]:
    """Outputs, where rows ended, and the gradients of inputs, weights and state."""
    layer.recurrence = kind
    state = start_of(layer, len(packing.order))
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(len(packing.forward), layer.input_weight.shape[0], generator=generator).requires_grad_()
    outputs, ended = layer(inputs, packing, state)
    found = [outputs, *ended]
    total = sum((torch.cos(part) * torch.linspace(0.5, 2, part.numel()).view_as(part)).sum() for part in found)
    gradients = torch.autograd.grad(total, [inputs, *layer.parameters(), *state])
    return [*(part.detach() for part in found), *gradients]


@pytest.mark.parametrize("changes", [{}, {"cells": 5}, {"cells": 6, "projection": 1}], ids=str)
@pytest.mark.parametrize("lengths", [[4, 0, 1, 2], [3, 3], [1], [0, 2]], ids=str)
def test_outputs_and_gradients_are_those_of_the_steps(changes: dict[str, Any], lengths: list[int]) -> None:
    layer = layer_of(**changes)
    packing = pack(lengths)
    for found, expected in zip(run(layer, "fused", packing), run(layer, "steps", packing), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_nothing_to_run() -> None:
    layer = layer_of()
    layer.recurrence = "fused"
    state = start_of(layer, 2)
    outputs, ended = layer(torch.zeros(0, 5), pack([0, 0]), state)
    assert outputs.shape == (0, 5)
    assert torch.equal(ended.cell, state.cell) and torch.equal(ended.hidden, state.hidden)


@pytest.mark.parametrize("initial_state", ["zero", "canonical"])
def test_a_whole_model_is_the_same(initial_state: str) -> None:
    torch.manual_seed(5)
    bilm = BiLM(BiLMConfig(**UNCLIPPED, initial_state=initial_state))
    found = {}
    for kind in ("steps", "fused"):
        bilm.set_recurrence(kind)
        bilm.zero_grad()
        layers = bilm(SENTENCES).layers
        layers.square().sum().backward()
        with torch.no_grad():
            without = bilm(SENTENCES).layers
        found[kind] = [layers.detach(), without, *(parameter.grad.clone() for parameter in bilm.parameters())]
    for fused, steps in zip(found["fused"], found["steps"], strict=True):
        torch.testing.assert_close(fused, steps, rtol=1e-5, atol=1e-5)


def test_bfloat16_is_close() -> None:
    layer, packing = layer_of(), pack([4, 2])
    exact = run(layer, "fused", packing)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = run(layer, "fused", packing)
    for found, expected in zip(rounded[:3], exact[:3]):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


def test_without_gradients_autocast_changes_nothing() -> None:
    layer, packing = layer_of(), pack([4, 2])
    layer.recurrence = "fused"
    inputs = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        exact = layer(inputs, packing, start_of(layer, 2))[0]
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(layer(inputs, packing, start_of(layer, 2))[0], exact)


@pytest.mark.parametrize("changes", [{"cell_clip": 3.0}, {"projection_clip": 3.0}, {"projection": 11}], ids=str)
def test_what_torch_cannot_do_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="E020"):
        layer_of(**changes).recurrence = "fused"
    bilm = BiLM(BiLMConfig(**{**UNCLIPPED, **changes}))
    with pytest.raises(ConfigError, match="E020"):
        bilm.set_recurrence("fused")
    assert {layer.recurrence for stack in (bilm.forward_lm, bilm.backward_lm) for layer in stack} == {"steps"}


def test_a_projection_clip_without_projection_is_none() -> None:
    layer_of(cells=5, projection_clip=3.0).recurrence = "fused"


def test_an_unknown_recurrence() -> None:
    with pytest.raises(ConfigError, match="E001.*recurrence"):
        layer_of().recurrence = "unrolled"


def test_it_is_no_part_of_the_weights() -> None:
    layer = layer_of()
    names = set(layer.state_dict())
    layer.recurrence = "fused"
    assert set(layer.state_dict()) == names
