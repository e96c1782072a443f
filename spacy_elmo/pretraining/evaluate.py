"""Held-out perplexity: full softmax, each direction by itself, no dropout, the same whatever the batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from ..errors import CorpusError, Errors
from ..lm.bilm import BiLM
from ..lm.softmax import OutputHead
from .batches import group_by_words
from .objective import log_probabilities, prepare_sentences
from .vocabulary import Vocabulary


class Perplexity(NamedTuple):
    """exp of the mean negative log-probability per predicted word; every word counts, and one boundary a sentence.

    forward (float): Each word from its left, and the end of the sentence.
    backward (float): Each word from its right, and the begin of the sentence.
    joint (float): Geometric mean of both, which is what bilm-tf reports.
    words (int): Words predicted in each direction, boundaries included.
    """

    forward: float
    backward: float
    joint: float
    words: int


def perplexity(
    bilm: BiLM,
    head: OutputHead,
    vocabulary: Vocabulary,
    sentences: Iterable[Sequence[str]],
    batch_words: int = 8192,
) -> Perplexity:
    """Score text. Words outside the vocabulary count as the unknown word.

    bilm (BiLM): The model.
    head (OutputHead): Its softmax.
    vocabulary (Vocabulary): Its words.
    sentences (Iterable): The text.
    batch_words (int): Words scored at the same time.
    RETURNS (Perplexity): Of each direction.
    RAISES (CorpusError): E203 if there is no sentence.
    """
    device = next(bilm.parameters()).device
    totals = torch.zeros(2, dtype=torch.float64)
    places = 0
    with head.prepared():
        for batch in group_by_words(sentences, batch_words):
            scores, _ = log_probabilities(bilm, head, prepare_sentences(batch, vocabulary).to(device))
            totals += scores.sum(1, dtype=torch.float64).cpu()
            places += scores.shape[1]
    if not places:
        raise CorpusError(Errors.E203.format(shards="the held-out text"))
    losses = (-totals / places).tolist()
    forward, backward, joint = (bounded_exp(loss) for loss in (*losses, sum(losses) / 2))
    return Perplexity(forward, backward, joint, places)


def combined(found: Iterable[Perplexity]) -> Perplexity:
    """RETURNS (Perplexity): Of several texts together, from that of each."""
    all_of = list(found)
    words = sum(one.words for one in all_of)
    forward, backward = (
        sum(math.log(getattr(one, direction)) * one.words for one in all_of) / words
        for direction in ("forward", "backward")
    )
    return Perplexity(bounded_exp(forward), bounded_exp(backward), bounded_exp((forward + backward) / 2), words)


def bounded_exp(loss: float) -> float:
    """RETURNS (float): The exponential; infinity where floats end."""
    return math.exp(loss) if loss < 700 else math.inf
