"""The ways in which spaCy saves, sends and copies a pipeline."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import spacy
from spacy.language import Language


def through_disk(nlp: Language, directory: Path) -> Language:
    nlp.to_disk(directory)
    return spacy.load(directory)


def through_bytes(nlp: Language, directory: Path) -> Language:
    return spacy.util.load_model_from_config(nlp.config, auto_fill=True).from_bytes(nlp.to_bytes())


def through_pickle(nlp: Language, directory: Path) -> Language:
    return pickle.loads(pickle.dumps(nlp))


def through_deepcopy(nlp: Language, directory: Path) -> Language:
    return copy.deepcopy(nlp)


WAYS = [through_disk, through_bytes, through_pickle, through_deepcopy]
Way = Callable[[Language, Path], Language]
