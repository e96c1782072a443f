"""A tiny biLM with random weights, and the command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from spacy.cli._util import app
from typer.testing import CliRunner, Result

import spacy_elmo.cli  # noqa: F401
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.weights.native import save_bilm

TINY = BiLMConfig(character_dim=4, filters=((1, 4), (2, 8)), max_characters=12, n_highway=1, projection=8, cells=16)

Command = Callable[..., Result]


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A native weights directory; width 16, three layers."""
    torch.manual_seed(1)
    directory = tmp_path_factory.mktemp("weights") / "bilm"
    save_bilm(BiLM(TINY), directory)
    return directory


@pytest.fixture
def spacy_command() -> Command:
    """A function that runs `python -m spacy …` in this process."""

    def run(*arguments: object, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)

    return run
