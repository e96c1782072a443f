"""For tests of what happens where numba is not there, or does not work."""

from __future__ import annotations

import sys

import pytest


def forget_compiled_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it had not been imported yet."""
    monkeypatch.delitem(sys.modules, "spacy_elmo.lm.compiled_cell", raising=False)
    monkeypatch.delattr("spacy_elmo.lm.compiled_cell", raising=False)
