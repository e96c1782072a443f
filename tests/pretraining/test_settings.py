from __future__ import annotations

import math

import pytest

from spacy_elmo.errors import TrainingError
from spacy_elmo.pretraining.settings import TrainingSettings

ADAPTIVE = {"kind": "adaptive", "cutoffs": [2, 5]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("epochs", "3"),
        ("epochs", 2.0),
        ("epochs", True),
        ("save_every", 0),
        ("max_words", 0),
        ("buffer_words", -1),
        ("seed", -1),
        ("seed", 2**63),
        ("dropout", 1.0),
        ("dropout", "0.1"),
        ("dropout", math.nan),
        ("dropout", False),
        ("peak_rate", None),
        ("peak_rate", 10**400),
        ("peak_rate", math.inf),
        ("weight_decay", [0.1]),
        ("max_gradient_norm", 0),
        ("bfloat16", 1),
        ("bfloat16", "no"),
    ],
)
def test_values_that_cannot_be(name, value):
    with pytest.raises(TrainingError, match=f"E216.*'{name}'"):
        TrainingSettings(**{name: value})


@pytest.mark.parametrize(
    "softmax",
    [
        None,
        "full",
        {},
        {"kind": "sampled"},
        {"kind": ["full"]},
        {"kind": "full", "foo": 1},
        {"kind": "full", "cutoffs": [3]},
        {"kind": "adaptive"},
        {**ADAPTIVE, "n_words": 5},
        {**ADAPTIVE, "cutoffs": "abc"},
        {**ADAPTIVE, "cutoffs": 100},
        {**ADAPTIVE, "cutoffs": []},
        {**ADAPTIVE, "cutoffs": [0, 4]},
        {**ADAPTIVE, "cutoffs": [4, 4]},
        {**ADAPTIVE, "cutoffs": [4, "7"]},
        {**ADAPTIVE, "cutoffs": list(range(1, 102))},
        {**ADAPTIVE, "shrink": "2"},
        {**ADAPTIVE, "shrink": 0.5},
        {**ADAPTIVE, "shrink": 1e308},
        {**ADAPTIVE, "shrink": math.nan},
    ],
)
def test_softmax_that_cannot_be(softmax):
    with pytest.raises(TrainingError, match="E216.*'softmax'"):
        TrainingSettings(softmax=softmax)


def test_whole_numbers_pass_for_rates_and_an_adaptive_softmax_needs_no_shrink():
    settings = TrainingSettings(peak_rate=1, dropout=0, softmax=ADAPTIVE, seed=2**63 - 1)
    assert settings.head_settings(8, 4) == {"kind": "adaptive", "cutoffs": [2], "projection": 8, "n_words": 4}


def test_clusters_that_would_be_empty_are_left_out():
    assert TrainingSettings(softmax=ADAPTIVE).head_settings(8, 2) == {"kind": "full", "projection": 8, "n_words": 2}


def test_settings_by_name():
    assert TrainingSettings.from_dict({"seed": 3, "max_words": 50}) == TrainingSettings(seed=3, max_words=50)
    with pytest.raises(TrainingError, match=r"E221.*\['sead'\].*'seed'"):
        TrainingSettings.from_dict({"sead": 3})
