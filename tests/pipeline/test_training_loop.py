"""`spacy train`, with all that a config can ask of an elmo pipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import spacy
import torch
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from thinc.api import Config

from spacy_elmo.weights.native import load_bilm
from tests.pipeline.toy_data import SENTENCES, make_examples

CONFIG = """
[system]
seed = 0

[nlp]
lang = "en"
pipeline = ["elmo","tagger","ner"]

[components]

[components.elmo]
factory = "elmo"
lr_scale = 0.05

[components.elmo.model]
@architectures = "spacy_elmo.BiLM.v1"

[components.tagger]
factory = "tagger"

[components.tagger.model]
@architectures = "spacy.Tagger.v2"

[components.tagger.model.tok2vec]
@architectures = "spacy_elmo.ElmoListener.v1"
layer_norm = "token"

[components.ner]
factory = "ner"

[components.ner.model]
@architectures = "spacy.TransitionBasedParser.v2"
state_type = "ner"
extra_state_tokens = false
hidden_width = 16
maxout_pieces = 2
use_upper = true

[components.ner.model.tok2vec]
@architectures = "spacy_elmo.ElmoListener.v1"
width = 12

[corpora]

[corpora.train]
@readers = "spacy.Corpus.v1"

[corpora.dev]
@readers = "spacy.Corpus.v1"

[training]
train_corpus = "corpora.train"
dev_corpus = "corpora.dev"
max_steps = 30
eval_frequency = 10
accumulate_gradient = 2

[training.score_weights]
tag_acc = 1.0

[training.batcher]
@batchers = "spacy.batch_by_sequence.v1"
size = 4

[training.optimizer]
@optimizers = "Adam.v1"
use_averages = true

[training.optimizer.learn_rate]
@schedules = "spacy_elmo.slanted_triangular.v1"
max_rate = 0.02
num_steps = 30
"""

UNFREEZE = """
[training.before_update]
@callbacks = "spacy_elmo.unfreeze_at.v1"
when = [2, 4]
"""


@pytest.fixture
def run(source: Path, tmp_path: Path) -> Callable[..., spacy.language.Language]:
    """A function that trains by a config, and gives the pipeline that was best, as it was saved."""

    def run(frozen: bool, more: str = "", **training: object) -> spacy.language.Language:
        corpus = tmp_path / "corpus.spacy"
        DocBin(docs=[example.reference for example in make_examples(spacy.blank("en"))] * 2).to_disk(corpus)
        config = spacy.util.load_model_from_config(Config().from_str(CONFIG + more), auto_fill=True).config
        config["components"]["elmo"]["frozen"] = frozen
        config["components"]["elmo"]["model"]["source"] = str(source)
        config["corpora"]["train"]["path"] = config["corpora"]["dev"]["path"] = str(corpus)
        config["training"].update(training)
        nlp = init_nlp(config)
        (tmp_path / "out").mkdir()
        train(nlp, tmp_path / "out")
        return spacy.load(tmp_path / "out" / "model-best")

    return run


def changed_layers(nlp: spacy.language.Language, source: Path) -> set[str]:
    before = load_bilm(source).state_dict()
    weights = nlp.get_pipe("elmo").bilm.state_dict()
    return {".".join(name.split(".")[:2]) for name, weight in weights.items() if not torch.equal(weight, before[name])}


def test_frozen(run, source: Path):
    nlp = run(frozen=True)
    assert changed_layers(nlp, source) == set()
    assert [token.tag_ for token in nlp(" ".join(SENTENCES[0]["words"]))] == SENTENCES[0]["tags"]


def test_unfrozen_layer_by_layer(run, source: Path):
    nlp = run(frozen=False, more=UNFREEZE)
    assert changed_layers(nlp, source) == {"forward_lm.0", "forward_lm.1", "backward_lm.0", "backward_lm.1"}
    assert [token.tag_ for token in nlp(" ".join(SENTENCES[0]["words"]))] == SENTENCES[0]["tags"]


@pytest.mark.parametrize("settings", [{"annotating_components": ["elmo"]}, {"frozen_components": ["elmo"]}], ids=str)
def test_components_that_spacy_freezes_or_lets_annotate(run, settings: dict[str, list[str]], source: Path):
    nlp = run(frozen=False, **settings)
    assert (changed_layers(nlp, source) == set()) is ("frozen_components" in settings)
    assert [token.tag_ for token in nlp(" ".join(SENTENCES[0]["words"]))] == SENTENCES[0]["tags"]


def test_training_goes_on_with_what_was_saved(run, tmp_path: Path, source: Path):
    first = run(frozen=True)
    text = " ".join(SENTENCES[0]["words"])
    expected = [token.tag_ for token in first(text)]
    config = first.config.copy()
    for name in ("elmo", "tagger"):
        config["components"][name] = {"source": str(tmp_path / "out" / "model-best")}
    config["training"]["frozen_components"] = ["tagger"]
    config["training"]["max_steps"] = 2
    nlp = init_nlp(config)
    (tmp_path / "again").mkdir()
    train(nlp, tmp_path / "again")
    again = spacy.load(tmp_path / "again" / "model-last")
    assert [token.tag_ for token in again(text)] == expected
    np.testing.assert_allclose(again(text)._.elmo, first(text)._.elmo, atol=1e-6)
