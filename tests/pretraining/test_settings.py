from __future__ import annotations

import math

import pytest

from spacy_elmo.errors import TrainingError
from spacy_elmo.lm.softmax import build_head
from spacy_elmo.pretraining.head_settings import head_settings
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
        ("loss_scale", 0),
        ("layer_rate_decay", 0),
        ("layer_rate_decay", 1.5),
        ("plateau_factor", 2),
        ("parts", -1),
        ("spike", -1),
        ("save_minutes", math.nan),
        ("variational_dropout", 1),
        ("precision", "bf16"),
        ("precision", True),
        ("precision", ["float32"]),
        ("objective", None),
        ("schedule", "linear"),
        ("optimizer", "sgd"),
        ("recurrence", "cudnn"),
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
        {"kind": "sampled", "n_samples": 0},
        {"kind": "sampled", "n_samples": 2.0},
        {"kind": "sampled", "distribution": "zipf"},
        {"kind": "sampled", "distribution": ["uniform"]},
        {"kind": "sampled", "correction": 3},
        {"kind": "tied", "correction": -1},
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
    assert head_settings(settings.softmax, 8, 4) == {"kind": "adaptive", "cutoffs": [2], "projection": 8, "n_words": 4}


def test_clusters_that_would_be_empty_are_left_out():
    assert head_settings(ADAPTIVE, 8, 2) == {"kind": "full", "projection": 8, "n_words": 2}


@pytest.mark.parametrize(
    "softmax",
    [{"kind": "full"}, {"kind": "sampled"}, {"kind": "sampled", "n_samples": 3, "distribution": "unigram"}]
    + [{"kind": "tied"}, {"kind": "tied", "n_samples": 3, "correction": 0}, {**ADAPTIVE, "shrink": 1}],
)
def test_every_softmax_that_may_be_asked_for_can_be_built(softmax):
    assert TrainingSettings(softmax=softmax).softmax == softmax
    head = build_head(head_settings(softmax, 8, 20))
    assert head.settings == {**head.settings, **softmax, "projection": 8, "n_words": 20}


def test_settings_by_name():
    assert TrainingSettings.from_dict({"seed": 3, "max_words": 50}) == TrainingSettings(seed=3, max_words=50)
    with pytest.raises(TrainingError, match=r"E221.*\['sead'\].*'seed'"):
        TrainingSettings.from_dict({"sead": 3})
