"""spacy-elmo's biLM from its own format."""

from __future__ import annotations

from contestants.spacy_elmo_bilm import SpacyElmoBiLM
from spacy_elmo.weights.native import load_bilm


def load(options: None, weights: str, vocabulary: list[str]) -> SpacyElmoBiLM:
    """RETURNS (SpacyElmoBiLM): Ready to embed. `weights` is a native directory; nothing else is used."""
    return SpacyElmoBiLM(load_bilm(weights))
