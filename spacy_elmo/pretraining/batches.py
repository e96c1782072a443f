"""In which order a training run reads a corpus.

A run reads the parts of a corpus side by side, one batch of each at every step. What a part yields in an epoch depends on
the seed, the epoch and the part only, so that a run can go on where it was, with as many processes as there are then.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import NamedTuple, TypeVar

from ..lm.characters import BEGIN_SENTENCE, END_SENTENCE, Word
from .corpus import Corpus, Sentence
from .settings import TrainingSettings

_Sentence = TypeVar("_Sentence", bound=Sized)


class Position(NamedTuple):
    """How far a training run has read: epochs done, steps of this epoch done."""

    epoch: int = 0
    step: int = 0


class Window(NamedTuple):
    """A piece of one stream: what each direction reads and what it predicts, word by word in its reading order."""

    forward_read: list[Word]
    forward_predicted: list[Word]
    backward_read: list[Word]
    backward_predicted: list[Word]


def sentence_batches(corpus: Corpus, settings: TrainingSettings, epoch: int, part: int) -> Iterator[list[Sentence]]:
    """Batches of sentences of like length, shuffled: the shards of an epoch, then the batches of each buffer.

    At each step the batches of all parts have sentences of about the same length: processes would wait for the longest.

    corpus (Corpus): The text.
    settings (TrainingSettings): Words of a batch and of a buffer, parts, seed.
    epoch (int), part (int): Which pass, and which part of the text.
    YIELDS (list[list[str]]): A batch of at least one sentence; no sentence is left out.
    RAISES (CorpusError): As `Corpus.sentences`.
    """
    # The same for all parts, step by step, whatever their buffers hold.
    order = random.Random(f"{settings.seed} {epoch} order")
    for buffer in _shuffled_buffers(corpus, settings, epoch, part):
        yield from _shuffled_batches(buffer, settings.batch_words, order)


def stream_batches(corpus: Corpus, settings: TrainingSettings, epoch: int, part: int) -> Iterator[list[Window]]:
    """Windows of streams without end: sentence after sentence, cut every so many words, as bilm-tf reads.

    All streams take their sentences from the same shuffled text, whichever needs one next. The two directions read the
    same sentences. What does not fill a window of each stream at the end of an epoch is left out.

    corpus (Corpus): The text.
    settings (TrainingSettings): Streams and words of a window, words of a buffer, parts, seed.
    epoch (int), part (int): Which pass, and which part of the text.
    YIELDS (list[Window]): A window of each stream, which goes on where the one before ended.
    RAISES (CorpusError): As `Corpus.sentences`.
    """
    streams = [_Stream() for _ in range(settings.streams)]
    sentences = (sentence for buffer in _shuffled_buffers(corpus, settings, epoch, part) for sentence in buffer)
    while True:
        for stream in streams:
            while len(stream) < settings.unroll:
                sentence = next(sentences, None)
                if sentence is None:
                    return
                stream.extend(sentence)
        yield [stream.take(settings.unroll) for stream in streams]


def group_by_words(
    sentences: Iterable[_Sentence], words: int, words_of: Callable[[_Sentence], int] = len
) -> Iterator[list[_Sentence]]:
    """Group sentences in their order.

    sentences (Iterable): The sentences.
    words (int): A group ends with the sentence that brings it to so many words.
    words_of (Callable): How many words a sentence has.
    YIELDS (list): The sentences of a group, at least one.
    """
    group: list[_Sentence] = []
    held = 0
    for sentence in sentences:
        group.append(sentence)
        held += words_of(sentence)
        if held >= words:
            yield group
            group, held = [], 0
    if group:
        yield group


class _Stream:
    """Words that wait to be read, in both directions."""

    def __init__(self) -> None:
        self._waiting = Window(*(deque() for _ in Window._fields))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._waiting.forward_read)

    def extend(self, sentence: Sentence) -> None:
        reverse = sentence[::-1]
        framed = Window(
            [BEGIN_SENTENCE, *sentence], [*sentence, END_SENTENCE], [END_SENTENCE, *reverse], [*reverse, BEGIN_SENTENCE]
        )
        for waiting, words in zip(self._waiting, framed):
            waiting.extend(words)

    def take(self, words: int) -> Window:
        return Window(*([waiting.popleft() for _ in range(words)] for waiting in self._waiting))  # type: ignore[attr-defined]


def _shuffled_buffers(corpus: Corpus, settings: TrainingSettings, epoch: int, part: int) -> Iterator[list[Sentence]]:
    shards = list(corpus.shards)
    random.Random(f"{settings.seed} {epoch}").shuffle(shards)
    buffers = group_by_words(corpus.sentences(shards, part, settings.parts), settings.buffer_words)
    for index, buffer in enumerate(buffers):
        random.Random(f"{settings.seed} {epoch} {part} {index}").shuffle(buffer)
        yield buffer


def _shuffled_batches(buffer: list[Sentence], batch_words: int, order: random.Random) -> list[list[Sentence]]:
    """What is drawn for a step decides where among the batches, from the shortest sentences to the longest, its own stands."""
    buffer.sort(key=len)
    batches: list[list[Sentence]] = [[]]
    held = 0
    for sentence in buffer:
        if batches[-1] and held + len(sentence) > batch_words:
            batches.append([])
            held = 0
        batches[-1].append(sentence)
        held += len(sentence)
    drawn = [order.random() for _ in batches]
    steps = sorted(range(len(batches)), key=drawn.__getitem__)
    return [batch for _, batch in sorted(zip(steps, batches))]
