"""A tiny biLM with random weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.weights.native import save_bilm

TINY = BiLMConfig(
    character_dim=4, filters=((1, 4), (2, 8), (3, 8)), max_characters=12, n_highway=1, projection=8, cells=16
)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A native weights directory; width 16, three layers."""
    torch.manual_seed(1)
    directory = tmp_path_factory.mktemp("weights") / "bilm"
    save_bilm(BiLM(TINY), directory)
    return directory
