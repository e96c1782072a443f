from __future__ import annotations

import copy
import pickle

import pytest
import torch

from spacy_elmo.lm import packed
from spacy_elmo.lm.packed import PackedWeight


@pytest.mark.parametrize("rows", [1, 3, 64, 100])
def test_product_is_that_of_the_plain_weight(rows: int) -> None:
    weight, inputs = torch.randn(48, 96), torch.randn(rows, 48)
    product = PackedWeight().multiply(inputs, weight)
    torch.testing.assert_close(product, inputs @ weight, rtol=0, atol=2e-5)


def test_a_changed_weight_is_seen() -> None:
    weight, inputs, packed_weight = torch.randn(16, 32), torch.randn(4, 16), PackedWeight()
    packed_weight.multiply(inputs, weight)
    weight.mul_(2)
    torch.testing.assert_close(packed_weight.multiply(inputs, weight), inputs @ weight, rtol=0, atol=2e-5)


def test_a_weight_that_can_be_trained_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(weight: torch.Tensor) -> None:
        raise AssertionError("packed")

    monkeypatch.setattr(packed, "_reorder", refuse)
    weight = torch.randn(16, 32, requires_grad=True)
    with torch.no_grad():
        PackedWeight().multiply(torch.randn(4, 16), weight)


def test_the_plain_product_serves_where_the_operators_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_reorder", lambda weight: None)
    weight, inputs = torch.randn(16, 32), torch.randn(4, 16)
    assert torch.equal(PackedWeight().multiply(inputs, weight), inputs @ weight)


def test_copies_and_pickles_are_empty() -> None:
    packed_weight = PackedWeight()
    packed_weight.multiply(torch.randn(4, 16), torch.randn(16, 32))
    for other in (copy.deepcopy(packed_weight), pickle.loads(pickle.dumps(packed_weight))):
        assert other._packed is None
