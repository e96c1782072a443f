from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from spacy.util import registry
from thinc.api import Adam

import spacy_elmo  # noqa: F401
from spacy_elmo.errors import ConfigError
from spacy_elmo.layers.schedules import slanted_triangular


def rates(n: int, **settings: Any) -> list[float]:
    return list(islice(slanted_triangular(1.0, **settings), n))


def test_rate_rises_to_its_height_and_falls_to_its_lowest_in_a_line():
    found = rates(100, num_steps=100, cut_frac=0.1, ratio=32)
    assert found[9] == max(found) == 1.0
    assert found[0] == pytest.approx((1 + 0.1 * 31) / 32)
    assert found[54] == pytest.approx((1 + 0.5 * 31) / 32)
    assert found[99] == min(found) == pytest.approx(1 / 32)


def test_rate_never_falls_below_its_lowest():
    assert set(rates(300, num_steps=100)[100:]) == {1 / 32}


@pytest.mark.parametrize("num_steps", [1, 2, 3, 9])
def test_short_trainings_have_rates_too(num_steps: int):
    assert all(1 / 32 <= rate <= 1 for rate in rates(12, num_steps=num_steps))


@pytest.mark.parametrize("settings", [{"num_steps": 0}, {"cut_frac": 1.0}, {"ratio": 0.5}], ids=str)
def test_impossible_settings_are_refused_by_name(settings: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"E300.*{next(iter(settings))}"):
        slanted_triangular(**{"max_rate": 1.0, "num_steps": 10, **settings})


def test_config_can_name_it():
    config = {"@schedules": "spacy_elmo.slanted_triangular.v1", "max_rate": 0.5, "num_steps": 10}
    schedule = registry.resolve({"learn_rate": config})["learn_rate"]
    optimizer = Adam(schedule)
    optimizer.step_schedules()
    assert 0 < optimizer.learn_rate <= 0.5
