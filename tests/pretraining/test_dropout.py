from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spacy_elmo.lm.batching import pack
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.pretraining.dropout import SeededDropout, VariationalDropout
from tests.pretraining.small_runs import CONFIG

LENGTHS = [3, 1, 5, 0, 3]
BOTH = [SeededDropout, VariationalDropout]


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_sentence(values: Tensor) -> list[Tensor]:
    """Values in the order of the packing, sentence by sentence."""
    packing = pack(LENGTHS)
    ordered = torch.empty_like(values)
    ordered[packing.forward] = values
    return list(ordered.split(LENGTHS))


@pytest.mark.parametrize("kind", BOTH)
def test_it_keeps_the_mean_and_follows_its_generator(kind: type) -> None:
    packing = pack([1] * 200)
    values = torch.ones(200, 200)
    dropped, again, other = (kind(0.25, generator_of(seed))(values, packing) for seed in (5, 5, 6))
    assert torch.equal(dropped, again) and not torch.equal(dropped, other)
    assert (dropped == 0).float().mean() == pytest.approx(0.25, abs=0.01)
    assert dropped.mean() == pytest.approx(1, abs=0.02)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.75])


def test_numbers_of_seeded_dropout() -> None:
    """They are a part of what a run that goes on must meet again."""
    values = torch.arange(1.0, 13.0).view(4, 3)
    kept = torch.rand(4, 3, generator=generator_of(9)) >= 0.5
    assert torch.equal(SeededDropout(0.5, generator_of(9))(values, pack([4])), values * kept * 2)


def test_variational_dropout_has_one_mask_for_a_sentence() -> None:
    found = by_sentence(VariationalDropout(0.5, generator_of(1))(torch.ones(sum(LENGTHS), 40), pack(LENGTHS)))
    masks = [sentence[0] for sentence in found if len(sentence)]
    for sentence in found:
        assert all(torch.equal(word, sentence[0]) for word in sentence)
    assert len({tuple(mask.tolist()) for mask in masks}) == len(masks)


def test_variational_dropout_has_another_mask_each_time() -> None:
    dropout, values = VariationalDropout(0.5, generator_of(1)), torch.ones(sum(LENGTHS), 40)
    assert not torch.equal(dropout(values, pack(LENGTHS)), dropout(values, pack(LENGTHS)))


@pytest.mark.parametrize("kind", BOTH)
def test_gradients_go_where_values_were_kept(kind: type) -> None:
    values = torch.ones(sum(LENGTHS), 7, requires_grad=True)
    dropped = kind(0.5, generator_of(1))(values, pack(LENGTHS))
    dropped.sum().backward()
    assert torch.equal(values.grad, dropped)


@pytest.mark.parametrize("kind", BOTH)
def test_nothing_to_drop(kind: type) -> None:
    assert kind(0.5, generator_of(1))(torch.ones(0, 4), pack([0, 0])).shape == (0, 4)


@pytest.mark.parametrize("kind", BOTH)
def test_a_stack_drops_the_input_of_each_layer(kind: type) -> None:
    torch.manual_seed(0)
    bilm, packing = BiLM(CONFIG), pack([3, 2])
    calls: list[tuple[int, ...]] = []
    dropout = kind(0.5, generator_of(1))

    def counted(values: Tensor, given: object) -> Tensor:
        assert given is packing
        calls.append(tuple(values.shape))
        return dropout(values, packing)

    vectors = torch.randn(4, CONFIG.projection)
    state = bilm.initial_state().repeat(2).of_direction(0, torch.arange(2))
    rows = torch.tensor([0, 1, 2, 3, 0])
    outputs = [out for out, _ in bilm.forward_lm.run(vectors, rows, packing, state, counted)]
    assert calls == [(5, CONFIG.projection)] * CONFIG.n_layers
    without = [out for out, _ in bilm.forward_lm.run(vectors, rows, packing, state)]
    assert not torch.allclose(outputs[0], without[0])
