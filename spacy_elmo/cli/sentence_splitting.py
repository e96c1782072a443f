"""spaCy's tokenizer and sentence splitter at work on raw text, in this process or in several others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import CorpusError, Errors, detail_of
from .pipelines import blank_pipeline, saved_pipeline

if TYPE_CHECKING:
    from spacy.language import Language

# Texts that are split together have so many characters, unless one alone has more.
_BATCH_CHARACTERS = 100_000
_BATCH_TEXTS = 1000
# Batches that are under way or wait to be written, for each worker: bounds the memory.
_BATCHES_OF_A_WORKER = 3
# Only parsers and the like need spaCy's own limit.
_NO_LIMIT = 1 << 30
_LANGUAGE_CODE_LETTERS = (2, 3)


class RawText(NamedTuple):
    """Where a text comes from, and the text, or the tokens of a sentence that is split already."""

    path: Path
    line: int
    text: str | list[str]


class Counted(NamedTuple):
    """What was written: texts read, sentences and words written, tokens that whitespace in them made several words."""

    texts: int = 0
    sentences: int = 0
    words: int = 0
    split_tokens: int = 0

    def plus(self, other: Counted) -> Counted:
        """RETURNS (Counted): What both have together."""
        return Counted(*map(sum, zip(self, other)))


class Splitter:
    """What splits texts of a language, or in the manner of a pipeline.

    tokenizer (str): Code of a language, or name or path of a pipeline. A name of two or three letters is a code.
    max_words (int): Longer sentences are cut into pieces of so many words.

    RAISES (PipelineError): E408, E413, E415 if there is no such language or pipeline.
    """

    def __init__(self, tokenizer: str, max_words: int) -> None:
        self.tokenizer, self.max_words = tokenizer, max_words
        self.nlp = blank_pipeline(tokenizer) if self._is_code() else saved_pipeline(tokenizer)
        _keep_splitting_pipes(self.nlp)

    def about(self) -> dict[str, Any]:
        """RETURNS (dict): What the result depends on, for a manifest."""
        from spacy.about import __version__

        meta = self.nlp.meta
        pipeline = None if self._is_code() else f"{meta.get('lang')}_{meta.get('name')} {meta.get('version')}"
        return {"tokenizer": self.tokenizer, "pipeline": pipeline, "spacy": __version__}

    def split(self, texts: Sequence[RawText]) -> tuple[bytes, Counted]:
        """Split texts.

        texts (Sequence[RawText]): Some texts.
        RETURNS (tuple[bytes, Counted]): A sentence a line, and what was counted of them.
        RAISES (CorpusError): E403 for a text that is too long for the pipeline, E422 if the tokenizer fails.
        """
        lines: list[str] = []
        words = split_tokens = 0
        # Words that are new to spaCy's vocabulary are forgotten afterwards.
        with self.nlp.memory_zone():
            for text in texts:
                for tokens in self._sentences(text):
                    parts = [token.split() for token in tokens]
                    sentence = list(chain.from_iterable(parts))
                    words += len(sentence)
                    split_tokens += sum(len(part) > 1 for part in parts)
                    pieces = range(0, len(sentence), self.max_words)
                    lines += [" ".join(sentence[start : start + self.max_words]) + "\n" for start in pieces]
        return "".join(lines).encode("utf-8"), Counted(len(texts), len(lines), words, split_tokens)

    def _sentences(self, text: RawText) -> list[list[str]]:
        if isinstance(text.text, list):
            return [text.text]
        where = {"path": text.path, "line": text.line}
        if len(text.text) > self.nlp.max_length:
            raise CorpusError(Errors.E403.format(**where, length=len(text.text), limit=self.nlp.max_length))
        try:
            return [[token.text for token in sentence] for sentence in self.nlp(text.text).sents]
        except Exception as error:  # each language and pipeline has its own ways to fail
            raise CorpusError(Errors.E422.format(**where, detail=detail_of(error))) from error

    def _is_code(self) -> bool:
        return len(self.tokenizer) in _LANGUAGE_CODE_LETTERS and self.tokenizer.isalpha()


def split_in_processes(
    splitter: Splitter, texts: Iterable[RawText], n_process: int
) -> Generator[tuple[bytes, Counted], None, None]:
    """Split texts in worker processes, in memory that does not grow with their number.

    splitter (Splitter): How.
    texts (Iterable[RawText]): The texts.
    n_process (int): Worker processes; with 1, the work is done in this one.
    YIELDS (tuple[bytes, Counted]): Of some texts at a time, in order, what `Splitter.split` gives.
    RAISES (CorpusError): As `Splitter.split` does; E424 if a worker dies, E470 if none can be started.
    """
    batches = _batches(texts)
    if n_process == 1:
        yield from map(splitter.split, batches)
        return
    # Not by fork: a process with threads, such as torch's, cannot be forked safely.
    executor = ProcessPoolExecutor(
        n_process, multiprocessing.get_context("spawn"), _begin_worker, (splitter.tokenizer, splitter.max_words)
    )
    under_way: deque[Future[tuple[bytes, Counted]]] = deque()
    try:
        for batch in batches:
            with _interrupts_held():
                under_way.append(executor.submit(_split_in_worker, batch))
            if len(under_way) == _BATCHES_OF_A_WORKER * n_process:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    except BrokenProcessPool as error:
        raise CorpusError(Errors.E424) from error
    except OSError as error:  # of starting a process: what reads texts has errors of its own
        raise CorpusError(Errors.E470.format(detail=detail_of(error))) from error
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C goes to all processes of a terminal, but only the first one is to say what happens: those that it starts
    within the block never notice, not even while they import. It itself notices afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _batches(texts: Iterable[RawText]) -> Iterator[list[RawText]]:
    batch: list[RawText] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text.text) if isinstance(text.text, str) else sum(map(len, text.text))
        if len(batch) == _BATCH_TEXTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _keep_splitting_pipes(nlp: Language) -> None:
    """Leave the pipes that split sentences and those that they listen to; where none splits, add a sentencizer."""
    splitting = {name for name in nlp.pipe_names if _splits(nlp, name)}
    heard = {name for name, pipe in nlp.pipeline if splitting & set(getattr(pipe, "listening_components", ()))}
    for name in list(nlp.pipe_names):
        if name not in splitting | heard:
            nlp.disable_pipe(name)
    if not splitting:
        nlp.add_pipe("sentencizer", name="sentencizer_of_raw_text")
    if all(nlp.get_pipe_meta(name).factory == "sentencizer" for name in nlp.pipe_names):
        nlp.max_length = _NO_LIMIT


def _splits(nlp: Language, name: str) -> bool:
    return bool({"token.is_sent_start", "doc.sents"} & set(nlp.get_pipe_meta(name).assigns))


# What workers do. Each has one splitter.

_splitters: list[Splitter] = []


def _begin_worker(tokenizer: str, max_words: int) -> None:
    # Windows cannot hold interrupts; there they may at least not end the work.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _splitters.append(Splitter(tokenizer, max_words))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _split_in_worker(texts: Sequence[RawText]) -> tuple[bytes, Counted]:
    return _splitters[0].split(texts)
