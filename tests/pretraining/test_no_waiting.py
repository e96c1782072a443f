"""A training step never makes the CPU wait for a GPU. On torch's "meta" device there are no values, so that asking for one is an
error; and what an operation takes from the CPU, other than a number, would be copied there in passing, which waits as well."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.softmax import build_head
from spacy_elmo.lm.tied_softmax import VocabularyEncoder
from spacy_elmo.pretraining import learner as learner_module
from spacy_elmo.pretraining.batches import Window
from spacy_elmo.pretraining.distributed import Workers
from spacy_elmo.pretraining.head_settings import head_settings
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
    head = build_head(head_settings(HEADS[kind], CONFIG.projection, len(VOCABULARY)))
    head.bind(VocabularyEncoder(bilm, VOCABULARY.words))
    return bilm.to(NOWHERE), head.to(NOWHERE)


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices, but for copies from one to the other."""

    def __torch_dispatch__(self, function, types, arguments=(), kwargs=None):
        flat, _ = tree_flatten((arguments, kwargs or {}))
        devices = {each.device.type for each in flat if isinstance(each, torch.Tensor) and each.dim()}
        copies = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)
        assert len(devices) < 2 or function in copies, f"{function} on {devices}"
        return function(*arguments, **(kwargs or {}))


class GeneratorOfTheCPU(torch.Generator):
    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu")


@pytest.fixture(autouse=True)
def autocast_that_takes_any_device(monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    monkeypatch.setattr(torch, "autocast", lambda device, enabled: nullcontext())


def learn(bilm, head, batch):
    with OneDevice():
        scores, _ = log_probabilities(bilm, head.training_log_probabilities, batch.to(NOWHERE))
        scores.sum().backward()
    return scores


@pytest.mark.parametrize("kind", HEADS)
def test_no_head_waits(kind):
    bilm, head = model_of(kind)
    scores = learn(bilm, head, prepare_sentences(SENTENCES, VOCABULARY))
    assert scores.shape == (2, 14) and scores.device == NOWHERE
    assert all(parameter.grad is not None for parameter in bilm.parameters())


@pytest.mark.parametrize(
    "changes",
    [{"dropout": 0.1}, {"dropout": 0.1, "variational_dropout": True}, {"head_steps": 2}, {"precision": "float16"}],
)
def test_a_whole_step_does_not_wait(monkeypatch, changes):
    # No generator is there, nor is AdamW fused.
    monkeypatch.setattr(torch, "Generator", GeneratorOfTheCPU)
    monkeypatch.setattr(learner_module, "products_in", lambda precision, device: nullcontext())
    settings = TrainingSettings(**{"parts": 1, "dropout": 0.0, "optimizer": "adagrad", **changes})
    learner = Learner(*model_of("adaptive"), settings, Workers())
    with OneDevice():
        for step in range(2):
            learner.learn({0: prepare_sentences(SENTENCES, VOCABULARY)}, 14, step, 0.1)
    assert learner.device == NOWHERE


@pytest.mark.parametrize("initial_state", ["zero", "canonical"])
def test_no_initial_state_waits(initial_state):
    scores = learn(*model_of("full", initial_state), prepare_sentences(SENTENCES, VOCABULARY))
    assert scores.device == NOWHERE


def test_streams_do_not_wait():
    windows = [Window(["the", "cat"], ["cat", "sat"], ["sat", "cat"], ["cat", "the"])] * 3
    scores = learn(*model_of("full"), prepare_windows(windows, VOCABULARY))
    assert scores.shape == (2, 6)


def test_waiting_would_be_seen():
    there, here = torch.tensor([1, 2]).to(NOWHERE), torch.tensor([0])
    for ask in (there.tolist, there.nonzero, there[0].item, there.unique):
        with pytest.raises((RuntimeError, NotImplementedError)):
            ask()
    with pytest.raises(AssertionError, match="index"), OneDevice():
        there[here]
