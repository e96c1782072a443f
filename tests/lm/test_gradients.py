"""Gradients of BiLM against finite differences, and the path with gradients against the one without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from spacy_elmo.lm.bilm import BiLM, BiLMState
from spacy_elmo.lm.config import BiLMConfig
from tests.oracle import random_parameters

TINY: dict[str, Any] = {
    "character_dim": 2,
    "filters": ((1, 2), (2, 1)),
    "max_characters": 5,
    "activation": "tanh",
    "n_highway": 1,
    "projection": 2,
    "cells": 3,
    "n_layers": 2,
    "cell_clip": 0.5,
    "projection_clip": 0.3,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "clips and skip connections": {},
    "no skip connections": {"skip_connections": False},
    "no clips": {"cell_clip": None, "projection_clip": None},
    "cell clip only": {"projection_clip": None},
    "projection clip only": {"cell_clip": None},
    "no LSTM projection": {"cells": 2},
    "no projection at all": {"projection": 3, "cells": 3, "n_layers": 1},
    "relu and no highways": {"activation": "relu", "n_highway": 0},
    "two highways, one layer": {"n_highway": 2, "n_layers": 1},
    "three layers": {"n_layers": 3},
}
# Ragged, with words that repeat, an empty sentence, and one of a single word.
SENTENCES = [["ab", "c", "ab", "a"], [], ["c"], ["bca", "c"]]


def _bilm(initial_state: str = "zero", dtype: str = "float64", **changes: Any) -> BiLM:
    config = BiLMConfig(**{**TINY, **changes, "initial_state": initial_state})
    bilm = BiLM(config).to(getattr(torch, dtype))
    parameters = random_parameters(config, seed=5, dtype=dtype, lstm_scale=1.5)
    bilm.load_state_dict({name: torch.from_numpy(values) for name, values in parameters.items()})
    return bilm


def _gradcheck(bilm: BiLM, state: BiLMState | None = None, fast: bool = True) -> None:
    """Compare the derivatives of layers and final state by all parameters, and by the state handed in.

    Fast compares random combinations of the derivatives by each tensor, or else each derivative by itself.
    Only the rows of characters that the words use are varied: all others have the derivative 0 on either side.
    """
    names = [name for name, _ in bilm.named_parameters() if name != "encoder.characters"]
    used = sorted({*b"abc", *range(256, 261)})
    weights = dict(bilm.named_parameters())
    table = weights["encoder.characters"].detach()

    def run(rows: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        parameters = dict(zip(names, tensors[: len(names)], strict=True))
        parameters["encoder.characters"] = table.index_copy(0, torch.tensor(used), rows)
        given = BiLMState(*tensors[len(names) :]) if state is not None else None
        output = functional_call(bilm, parameters, (SENTENCES, given))
        return (output.layers, *(output.state or ()))

    inputs = [table[used], *(weights[name].detach() for name in names), *(state or ())]
    inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    # The default tolerance is so wide that the fast mode misses the gradient of a step that reads a neighbour's cell.
    assert torch.autograd.gradcheck(run, tuple(inputs), fast_mode=fast, atol=1e-8, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_of_all_parameters(variant: str) -> None:
    _gradcheck(_bilm(**VARIANTS[variant]))


def test_each_derivative_by_itself() -> None:
    _gradcheck(_bilm(cells=2, n_layers=1), fast=False)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_derivative_of_all_variants_by_itself(variant: str) -> None:
    _gradcheck(_bilm(**VARIANTS[variant]), fast=False)


def test_gradients_through_the_canonical_start() -> None:
    _gradcheck(_bilm("canonical"))


@pytest.mark.parametrize("changes", [{}, {"cells": 2}, {"skip_connections": False}], ids=str)
def test_gradients_through_a_carried_state(changes: dict[str, Any]) -> None:
    """More rows than sentences: the one left over is handed on, with its gradient."""
    bilm = _bilm("carry", **changes)
    generator = torch.Generator().manual_seed(2)
    shape = (2, bilm.config.n_layers, len(SENTENCES) + 1)
    sizes = (bilm.config.cells, bilm.config.projection)
    state = BiLMState(*(torch.randn(*shape, size, generator=generator, dtype=torch.float64) * 0.1 for size in sizes))
    _gradcheck(bilm, state)


def test_clips_bind_in_some_elements_only() -> None:
    """Or else the checks above would say nothing about the gradient at clips."""
    bilm = _bilm("carry", skip_connections=False)
    cells = torch.cat([bilm([sentence[: n + 1]]).state.cell for sentence in SENTENCES for n in range(len(sentence))])
    outputs = bilm(SENTENCES).layers[:, 1:]
    for values, clip in ((cells, 0.5), (outputs, 0.3)):
        clipped = (values.abs() == clip).float().mean()
        assert 0.05 < clipped < 0.95


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("initial_state", ["zero", "canonical", "carry"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_output_is_the_same_without_gradients(variant: str, initial_state: str, dtype: str) -> None:
    bilm = _bilm(initial_state, dtype, **VARIANTS[variant])
    with_graph = bilm(SENTENCES)
    with torch.no_grad():
        without = bilm(SENTENCES)
    with torch.inference_mode():
        inference = bilm(SENTENCES)
    frozen = bilm.requires_grad_(False)(SENTENCES)
    assert with_graph.layers.requires_grad
    for other in (without, inference, frozen):
        assert not other.layers.requires_grad
        found_values = [other.layers, *(other.state or ())]
        for found, expected in zip(found_values, [with_graph.layers, *(with_graph.state or ())], strict=True):
            torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-6 if dtype == "float32" else 1e-13)


def test_every_parameter_gets_a_gradient() -> None:
    bilm = _bilm("canonical", dtype="float32")
    bilm(SENTENCES).layers.square().sum().backward()
    for name, parameter in bilm.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_one_frozen_part_needs_no_gradient() -> None:
    """Fine-tuning the LSTMs over a frozen character encoder, as configs with a learning rate of 0 for it do."""
    bilm, reference = _bilm(), _bilm()
    bilm.encoder.requires_grad_(False)
    bilm(SENTENCES).layers.square().sum().backward()
    reference(SENTENCES).layers.square().sum().backward()
    expected = dict(reference.named_parameters())
    for name, parameter in bilm.named_parameters():
        if name.startswith("encoder"):
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, expected[name].grad)


def test_frozen_lstms_pass_gradients_to_the_encoder() -> None:
    bilm, reference = _bilm(), _bilm()
    bilm.forward_lm.requires_grad_(False)
    bilm.backward_lm.requires_grad_(False)
    bilm(SENTENCES).layers.square().sum().backward()
    reference(SENTENCES).layers.square().sum().backward()
    for name, parameter in bilm.encoder.named_parameters():
        torch.testing.assert_close(parameter.grad, dict(reference.encoder.named_parameters())[name].grad)


def test_small_batches_change_no_gradient() -> None:
    bilm, reference = _bilm("canonical"), _bilm("canonical")
    bilm(SENTENCES, max_batch_words=2).layers.square().sum().backward()
    reference(SENTENCES).layers.square().sum().backward()
    for (name, parameter), (_, expected) in zip(bilm.named_parameters(), reference.named_parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, msg=name)
