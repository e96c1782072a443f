"""A training step never asks a device for a value, which would make the CPU wait for a GPU: on torch's "meta" device there are
no values, so that asking is an error."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.softmax import build_head
from spacy_elmo.lm.tied_softmax import VocabularyEncoder
from spacy_elmo.pretraining import learner as learner_module
from spacy_elmo.pretraining.batches import Window
from spacy_elmo.pretraining.distributed import Workers
from spacy_elmo.pretraining.learner import Learner
from spacy_elmo.pretraining.objective import log_probabilities, prepare_sentences, prepare_windows
from spacy_elmo.pretraining.settings import TrainingSettings
from spacy_elmo.pretraining.vocabulary import Vocabulary
from tests.pretraining.small_runs import CONFIG

NOWHERE = torch.device("meta")
SENTENCES = [["the", "cat", "sat"], ["a"], ["the", "dog", "sat", "unheard"], ["cat", "cat"]]
VOCABULARY = Vocabulary.count([["the", "the", "cat", "sat", "a", "dog", *"bcdefgh"]], 100)
# Counts that words are drawn by are asked for once, not in each step: they are left out here.
HEADS = {
    "full": {"kind": "full"},
    "adaptive": {"kind": "adaptive", "cutoffs": [4, 6], "shrink": 2.0},
    "sampled": {"kind": "sampled", "n_samples": 4},
    "uniform": {"kind": "sampled", "n_samples": 4, "distribution": "uniform"},
    "tied": {"kind": "tied", "n_samples": 4},
}


def model_of(kind, initial_state="canonical"):
    bilm = BiLM(BiLMConfig.from_dict({**CONFIG.to_dict(), "initial_state": initial_state}))
    head = build_head({**HEADS[kind], "projection": CONFIG.projection, "n_words": len(VOCABULARY)})
    head.bind(VocabularyEncoder(bilm, VOCABULARY.words))
    return bilm.to(NOWHERE), head.to(NOWHERE)


class GeneratorOfTheCPU(torch.Generator):
    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu")


@pytest.fixture(autouse=True)
def autocast_that_takes_any_device(monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    monkeypatch.setattr(torch, "autocast", lambda device, enabled: nullcontext())


def learn(bilm, head, batch):
    scores, _ = log_probabilities(bilm, head.training_log_probabilities, batch.to(NOWHERE))
    scores.sum().backward()
    return scores


@pytest.mark.parametrize("kind", HEADS)
def test_no_head_asks_for_a_value(kind):
    bilm, head = model_of(kind)
    scores = learn(bilm, head, prepare_sentences(SENTENCES, VOCABULARY))
    assert scores.shape == (2, 14) and scores.device == NOWHERE
    assert all(parameter.grad is not None for parameter in bilm.parameters())


@pytest.mark.parametrize("variational", [False, True])
def test_a_whole_step_asks_for_no_value(monkeypatch, variational):
    # No generator is there, nor is AdamW fused.
    monkeypatch.setattr(torch, "Generator", GeneratorOfTheCPU)
    monkeypatch.setattr(learner_module, "products_in", lambda precision, device: nullcontext())
    settings = TrainingSettings(parts=1, dropout=0.1, variational_dropout=variational, optimizer="adagrad")
    learner = Learner(*model_of("adaptive"), settings, Workers())
    learner.learn({0: prepare_sentences(SENTENCES, VOCABULARY)}, 14, 0, 0.1)
    assert learner.device == NOWHERE


@pytest.mark.parametrize("initial_state", ["zero", "canonical"])
def test_no_initial_state_asks_for_a_value(initial_state):
    scores = learn(*model_of("full", initial_state), prepare_sentences(SENTENCES, VOCABULARY))
    assert scores.device == NOWHERE


def test_streams_ask_for_no_value():
    windows = [Window(["the", "cat"], ["cat", "sat"], ["sat", "cat"], ["cat", "the"])] * 3
    scores = learn(*model_of("full"), prepare_windows(windows, VOCABULARY))
    assert scores.shape == (2, 6)


def test_asking_for_a_value_would_be_seen():
    asked = torch.tensor([1, 2]).to(NOWHERE)
    for ask in (asked.tolist, asked.nonzero, asked[0].item, asked.unique):
        with pytest.raises((RuntimeError, NotImplementedError)):
            ask()
