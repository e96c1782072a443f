"""spacy-elmo's biLM, without the pipeline around it: words in, the equal mix of all layers out."""

from __future__ import annotations

import numpy as np
import torch

from contestants.contract import Sentences
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.weights.bilm_hdf5 import load_bilm_hdf5


class SpacyElmoBiLM:
    """`BiLM` without gradients, every sentence from zero state."""

    def __init__(self, bilm: BiLM) -> None:
        self.bilm = bilm

    def embed(self, sentences: Sentences) -> object:
        with torch.inference_mode():
            return self.bilm(sentences).layers.mean(1)

    def layers(self, sentences: Sentences) -> np.ndarray:
        with torch.inference_mode():
            layers: np.ndarray = self.bilm(sentences).layers.numpy()
        return layers

    def forget(self) -> None:
        self.bilm.clear_caches()


def load(options: str, weights: str, vocabulary: list[str]) -> SpacyElmoBiLM:
    """RETURNS (SpacyElmoBiLM): Ready to embed. The vocabulary is not used."""
    return SpacyElmoBiLM(load_bilm_hdf5(options, weights, initial_state="zero"))
