"""A wider biLM predicts what the narrow one does, and all that is new in it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from spacy_elmo.pretraining.objective import log_probabilities, prepare_sentences
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.weights.formats import load_model
from tests.pretraining.small_runs import write_model
from tests.project.test_project import load_script

widen_model = load_script("widen_model")

ADAPTIVE = {"kind": "adaptive", "cutoffs": [5, 12], "shrink": 2.0}
SENTENCES = [["w1", "w19", "w3"], ["w7"], ["w0", "nowhere"]]


def widened(monkeypatch: pytest.MonkeyPatch, source: Path, output: Path, projection: int, cells: int) -> None:
    sizes = ["--projection", str(projection), "--cells", str(cells)]
    monkeypatch.setattr("sys.argv", ["widen_model.py", str(source), str(output), *sizes])
    widen_model.main()


def test_the_probabilities_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    widened(monkeypatch, write_model(tmp_path / "narrow", ADAPTIVE), tmp_path / "wide", 11, 19)
    narrow, wide = (load_model(tmp_path / name, with_softmax=True) for name in ("narrow", "wide"))
    assert (wide.bilm.config.projection, wide.bilm.config.cells, wide.vocabulary) == (11, 19, narrow.vocabulary)
    batch = prepare_sentences(SENTENCES, Vocabulary(wide.vocabulary))
    scores = [log_probabilities(model.bilm, model.head, batch)[0] for model in (narrow, wide)]
    torch.testing.assert_close(*scores, atol=1e-5, rtol=1e-5)


def test_what_is_new_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    widened(monkeypatch, write_model(tmp_path / "narrow", ADAPTIVE), tmp_path / "wide", 11, 19)
    model = load_model(tmp_path / "wide", with_softmax=True)
    batch = prepare_sentences(SENTENCES, Vocabulary(model.vocabulary))
    bilm, head = model.bilm.requires_grad_(True), model.head.requires_grad_(True)
    optimizer = torch.optim.SGD([*bilm.parameters(), *head.parameters()], lr=0.1)
    before = {name: values.clone() for name, values in [*bilm.state_dict().items(), *head.state_dict().items()]}
    for _ in range(2):
        optimizer.zero_grad()
        (-log_probabilities(bilm, head, batch)[0].mean()).backward()
        optimizer.step()
    for layer in [*bilm.forward_lm, *bilm.backward_lm]:
        gates = layer.recurrent_weight.grad.unflatten(1, (4, 19))
        assert gates[8:, :, :12].any() and gates[:, :, 12:].any()
        assert layer.projection_weight.grad[12:, :8].any() and layer.projection_weight.grad[:, 8:].any()
    assert not torch.equal(before["head.weight"][:, 8:], head.head.weight[:, 8:])


@pytest.mark.parametrize(
    ("softmax", "projection", "message"), [({"kind": "full"}, 11, "adaptive"), (ADAPTIVE, 7, "projection of 8")]
)
def test_what_cannot_be_made_wider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, softmax: dict[str, Any], projection: int, message: str
):
    with pytest.raises(SystemExit, match=message):
        widened(monkeypatch, write_model(tmp_path / "narrow", softmax), tmp_path / "wide", projection, 19)
    assert not (tmp_path / "wide").exists()
