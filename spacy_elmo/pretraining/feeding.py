"""What a training run learns from at each step: the seam where another objective comes in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Any, NamedTuple

from .batches import sentence_batches, stream_batches
from .corpus import Corpus
from .objective import Batch, prepare_sentences, prepare_windows
from .settings import TrainingSettings
from .vocabulary import Vocabulary


class _Objective(NamedTuple):
    """read: yields batches of a part of the text in an epoch. prepare: makes such a batch ready."""

    read: Callable[[Corpus, TrainingSettings, int, int], Iterator[Any]]
    prepare: Callable[[Any, Vocabulary], Batch]


_OBJECTIVES = {
    "sentences": _Objective(sentence_batches, prepare_sentences),
    "streams": _Objective(stream_batches, prepare_windows),
}


def read_batches(
    corpus: Corpus,
    settings: TrainingSettings,
    vocabulary: Vocabulary,
    parts: Sequence[int],
    epoch: int = 0,
    done: int = 0,
) -> Iterator[dict[int, Batch]]:
    """The batches of each step of an epoch.

    corpus (Corpus), settings (TrainingSettings), vocabulary (Vocabulary): Those of the run.
    parts (Sequence[int]): The parts of the text to read.
    epoch (int): Which pass.
    done (int): Steps of this epoch that are done, and passed over.
    YIELDS (dict[int, Batch]): The batch of each part, on the CPU; a part that is at its end has none.
    RAISES (CorpusError): As `Corpus.sentences`.
    """
    objective = _OBJECTIVES[settings.objective]
    feeds = [islice(objective.read(corpus, settings, epoch, part), done, None) for part in parts]
    for of_parts in zip_longest(*feeds):
        found = zip(parts, of_parts)
        yield {part: objective.prepare(text, vocabulary) for part, text in found if text is not None}
