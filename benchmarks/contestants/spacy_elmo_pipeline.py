"""spacy-elmo as a user meets it: a blank pipeline with the component in it, from text to annotated Docs."""

from __future__ import annotations

import numpy as np
import spacy

import spacy_elmo  # noqa: F401  # makes the factory known where the package is not installed
from contestants.contract import Sentences

BATCH_SIZE = 64


class SpacyElmoPipeline:
    """`nlp.pipe` over one text a sentence, tokenization included."""

    def __init__(self, source: str | None) -> None:
        self.nlp = spacy.blank("en")
        self.nlp.add_pipe("elmo", config={"model": {"source": source}})

    def embed(self, sentences: Sentences) -> object:
        texts = [" ".join(words) for words in sentences]
        return sum(len(doc) for doc in self.nlp.pipe(texts, batch_size=BATCH_SIZE))

    def layers(self, sentences: Sentences) -> np.ndarray:
        raise NotImplementedError("The pipeline's vectors are not compared: its model is another one.")

    def forget(self) -> None:
        """The pipeline is measured as it runs."""


def load(options: None, weights: str | None, vocabulary: list[str]) -> SpacyElmoPipeline:
    """RETURNS (SpacyElmoPipeline): Ready to embed with a native weights directory, or else with the embedded model."""
    return SpacyElmoPipeline(weights)
