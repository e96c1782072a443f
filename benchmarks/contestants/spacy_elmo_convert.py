"""From options.json and hdf5 to spacy-elmo's own format, in the directory `native` beside them."""

from __future__ import annotations

from pathlib import Path

from contestants.spacy_elmo_bilm import SpacyElmoBiLM
from spacy_elmo.weights.bilm_hdf5 import load_bilm_hdf5
from spacy_elmo.weights.native import save_bilm

DIRECTORY = "native"


def load(options: str, weights: str, vocabulary: list[str]) -> SpacyElmoBiLM:
    """RETURNS (SpacyElmoBiLM): What was converted. The vocabulary is not used."""
    bilm = load_bilm_hdf5(options, weights, initial_state="zero")
    save_bilm(bilm, Path(weights).with_name(DIRECTORY))
    return SpacyElmoBiLM(bilm)
