"""Training runs of a moment: a tiny model on a made-up text."""

from __future__ import annotations

import random
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch

from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.softmax import build_head
from spacy_elmo.pretraining import environment
from spacy_elmo.pretraining.corpus import find_shards
from spacy_elmo.pretraining.loop import Run
from spacy_elmo.pretraining.settings import TrainingSettings
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.weights.native import save_bilm, save_head
from tests.numba_state import forget_compiled_cell

CONFIG = BiLMConfig(
    character_dim=4,
    filters=((1, 4), (2, 4), (3, 8)),
    max_characters=12,
    n_highway=1,
    projection=8,
    cells=12,
    n_layers=2,
)
SETTINGS: dict[str, Any] = {
    "buffer_words": 300,
    "batch_words": 60,
    "warmup_steps": 5,
    "dropout": 0.2,
    "vocabulary_size": 60,
    "min_count": 1,
    "softmax": {"kind": "adaptive", "cutoffs": [10, 25], "shrink": 2.0},
    "seed": 8,
    "evaluate_every": 10,
    "save_every": 5,
}
CPU = torch.device("cpu")
TEXT_WORDS = [f"w{number}" for number in range(40)]


def write_corpus(directory: Path, sentences: int = 150) -> Path:
    """Three shards of sentences over some forty words, rare words rarer."""
    directory.mkdir(parents=True, exist_ok=True)
    chance = random.Random(3)
    weights = [1 / (number + 1) for number in range(40)]
    for shard in range(3):
        lines = [" ".join(chance.choices(TEXT_WORDS, weights, k=chance.randint(3, 15))) for _ in range(sentences // 3)]
        (directory / f"{shard}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


def write_model(directory: Path, softmax: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A native directory, with a head for the words of the text if there are settings of one."""
    torch.manual_seed(3)
    bilm = BiLM(BiLMConfig.from_dict({**CONFIG.to_dict(), **changes}))
    save_bilm(bilm, directory)
    if softmax is not None:
        vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", *TEXT_WORDS[:30]])
        save_head(build_head({**softmax, "projection": CONFIG.projection, "n_words": len(vocabulary)}), directory)
        vocabulary.save(directory / "vocabulary.txt.gz")
    return directory


def small_run(directory: Path, text: Path, **changes: Any) -> Run:
    held_out = {"other": [["w0", "w1", "w2"], ["w3"], ["w39", "nowhere"]]}
    return Run(directory, CONFIG, TrainingSettings(**{**SETTINGS, **changes}), find_shards([text]), held_out, CPU)


def trained(directory: Path, text: Path, resume: bool = False, **changes: Any) -> Run:
    run = small_run(directory, text, **changes)
    run.begin(resume)
    run.train()
    return run


def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is not installed."""
    forget_compiled_cell(monkeypatch)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(environment, "version", not_installed)


def not_installed(name: str) -> str:
    raise PackageNotFoundError(name)
