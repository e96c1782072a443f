"""Settings of the output head, as a run's settings have them: without sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

_MOST_CUTOFFS, _MOST_SHRINK, _MOST_SAMPLES, _MOST_CORRECTION = 100, 1000, 10_000_000, 10_000
_DISTRIBUTIONS = ("log-uniform", "uniform", "unigram")

EXPECTED = (
    "{'kind': 'full'}, "
    f"{{'kind': 'adaptive', 'cutoffs': [rising word ids from 1 up, at most {_MOST_CUTOFFS}], 'shrink': a number from 1 "
    f"to {_MOST_SHRINK}}}, {{'kind': 'sampled', 'n_samples': a whole number, 'distribution': one of "
    f"{list(_DISTRIBUTIONS)}}}, or {{'kind': 'tied'}} with those of 'sampled' and 'correction': a width, 0 for none"
)


def is_head(value: object) -> bool:
    """RETURNS (bool): Whether these are settings of an output head."""
    if not isinstance(value, dict) or not isinstance(kind := value.get("kind"), str) or kind not in _KINDS:
        return False
    needed, optional = _KINDS[kind]
    given = value.keys() - {"kind"}
    return needed.keys() <= given <= (needed | optional).keys() and all(
        check(value[name]) for name, check in (needed | optional).items() if name in given
    )


def head_settings(softmax: dict[str, Any], projection: int, n_words: int) -> dict[str, Any]:
    """Settings of the output head for a vocabulary. A small text has a small one: clusters that would be empty are left
    out.

    RETURNS (dict): What `softmax.build_head` takes.
    """
    softmax = dict(softmax)
    if softmax["kind"] == "adaptive":
        softmax["cutoffs"] = [cutoff for cutoff in softmax["cutoffs"] if cutoff < n_words]
        if not softmax["cutoffs"]:
            softmax = {"kind": "full"}
    return {**softmax, "projection": projection, "n_words": n_words}


def is_whole(value: object, least: int, most: int = 2**63 - 1) -> bool:
    """RETURNS (bool): Whether this is a whole number within bounds; the generators of torch take no larger seed."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object) -> bool:
    """RETURNS (bool): Whether this is a number that a float can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _are_cutoffs(value: object) -> bool:
    if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= _MOST_CUTOFFS:
        return False
    return all(is_whole(cutoff, 1) for cutoff in value) and all(one < next_one for one, next_one in pairwise(value))


def _is_shrink(value: object) -> bool:
    return is_number(value) and 1 <= value <= _MOST_SHRINK  # type: ignore[operator]


def _are_samples(value: object) -> bool:
    return is_whole(value, 1, _MOST_SAMPLES)


def _is_correction(value: object) -> bool:
    return is_whole(value, 0, _MOST_CORRECTION)


def _is_distribution(value: object) -> bool:
    return value in _DISTRIBUTIONS


_Checks = dict[str, Callable[[object], bool]]
_SAMPLED: _Checks = {"n_samples": _are_samples, "distribution": _is_distribution}
# Of each kind the settings that it needs and those that it may have.
_KINDS: dict[str, tuple[_Checks, _Checks]] = {
    "full": ({}, {}),
    "adaptive": ({"cutoffs": _are_cutoffs}, {"shrink": _is_shrink}),
    "sampled": ({}, _SAMPLED),
    "tied": ({}, {**_SAMPLED, "correction": _is_correction}),
}
