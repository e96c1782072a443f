"""A pipeline with the tiny biLM, and what it must give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language

import spacy_elmo  # noqa: F401
from spacy_elmo.weights.native import load_bilm

MakeNlp = Callable[..., Language]
Expected = Callable[[list[str]], np.ndarray]


@pytest.fixture(scope="session")
def make_nlp(source: Path) -> MakeNlp:
    """A function that makes a blank pipeline with an elmo pipe of these settings."""

    def make(spans: dict[str, Any] | None = None, **settings: Any) -> Language:
        model: dict[str, Any] = {"source": str(source)}
        if spans is not None:
            model["get_spans"] = spans
        nlp = spacy.blank("en")
        nlp.add_pipe("elmo", config={"model": model, **settings})
        return nlp

    return make


@pytest.fixture(scope="session")
def nlp(make_nlp: MakeNlp) -> Language:
    return make_nlp()


@pytest.fixture(scope="session")
def layers_of(source: Path) -> Expected:
    """A function from the words of a sentence to their layers, straight from the biLM."""
    bilm = load_bilm(source)

    def run(words: list[str]) -> np.ndarray:
        with torch.no_grad():
            return bilm([words]).layers.numpy()

    return run


@pytest.fixture(scope="session")
def mixed(layers_of: Expected) -> Expected:
    """A function from the words of a sentence to the mean of their layers."""
    return lambda words: layers_of(words).mean(axis=1)
