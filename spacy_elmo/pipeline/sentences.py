"""Span getters: which stretches of a Doc the language model reads as one sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spacy.pipeline import Sentencizer
from spacy.tokens import Doc, Span
from spacy.util import registry

from ..layers.checks import require

SpanGetter = Callable[[list[Doc]], list[list[Span]]]


@registry.misc("spacy_elmo.sentence_spans.v1")  # type: ignore[untyped-decorator]
def sentence_spans(max_words: int | None = None) -> Callable[[list[Doc]], list[list[Span]]]:
    """Read sentence by sentence where sentences are marked (by a parser or sentencizer before this pipe, or in the Doc
    given), else each Doc as one sequence.

    max_words (int | None): Longer sequences are read in windows of as many tokens that overlap by half. Default: never,
        as the biLM reads sequences of any length exactly and in bounded memory.
    RETURNS (Callable): The span getter.
    RAISES (ConfigError): E300 if `max_words` is not a whole number from 2 up.
    """
    _require_max_words(_owner("sentence_spans"), max_words)
    return SentenceSpans(max_words)


@registry.misc("spacy_elmo.punctuation_spans.v1")  # type: ignore[untyped-decorator]
def punctuation_spans(
    punct_chars: list[str] | None = None, max_words: int | None = None
) -> Callable[[list[Doc]], list[list[Span]]]:
    """Read each Doc in sentences by the rules of spaCy's sentencizer, whatever sentences are marked in it, and mark none: what a
    senter or parser is to learn stays as it is, and text is read alike in training and in use.

    punct_chars (list[str] | None): Characters that end a sentence. Default: those of the sentencizer.
    max_words (int | None): See `sentence_spans`.
    RETURNS (Callable): The span getter.
    RAISES (ConfigError): E300 if a setting cannot be.
    """
    owner = _owner("punctuation_spans")
    expected = "a list of at least one character, or null for those of spaCy's sentencizer"
    require(owner, "punct_chars", punct_chars, punct_chars is None or len(punct_chars) > 0, expected)
    _require_max_words(owner, max_words)
    return PunctuationSpans(None if punct_chars is None else tuple(punct_chars), max_words)


@registry.misc("spacy_elmo.doc_spans.v1")  # type: ignore[untyped-decorator]
def doc_spans() -> Callable[[list[Doc]], list[list[Span]]]:
    """Read each Doc as one sequence, whatever sentences it has.

    RETURNS (Callable): The span getter.
    """
    return DocSpans()


@registry.misc("spacy_elmo.strided_spans.v1")  # type: ignore[untyped-decorator]
def strided_spans(window: int, stride: int) -> Callable[[list[Doc]], list[list[Span]]]:
    """Read each Doc in windows. A token in several windows takes its vector from the one where it has most context on
    its shorter side.

    window (int): Tokens of a window.
    stride (int): Tokens from the start of a window to the start of the next, at most `window`.
    RETURNS (Callable): The span getter.
    RAISES (ConfigError): E300 if a setting cannot be.
    """
    owner = _owner("strided_spans")
    require(owner, "window", window, window >= 1, "a whole number from 1 up")
    expected = f"a whole number from 1 to window={window}; tokens would be left out"
    require(owner, "stride", stride, 1 <= stride <= window, expected)
    return StridedSpans(window, stride)


@dataclass(frozen=True)
class SentenceSpans:
    """See `sentence_spans`."""

    max_words: int | None

    def __call__(self, docs: list[Doc]) -> list[list[Span]]:
        return [list(self._spans(doc)) for doc in docs]

    def _spans(self, doc: Doc) -> Iterator[Span]:
        for sentence in doc.sents if doc.has_annotation("SENT_START") else [doc[:]]:
            yield from _at_most(sentence, self.max_words)


@dataclass(frozen=True)
class PunctuationSpans:
    """See `punctuation_spans`."""

    punct_chars: tuple[str, ...] | None
    max_words: int | None

    def __call__(self, docs: list[Doc]) -> list[list[Span]]:
        sentencizer = Sentencizer(punct_chars=self.punct_chars)
        return [list(self._spans(doc, starts)) for doc, starts in zip(docs, sentencizer.predict(docs))]

    def _spans(self, doc: Doc, is_start: list[bool]) -> Iterator[Span]:
        starts = [index for index, starts in enumerate(is_start) if starts]
        for start, end in zip(starts, [*starts[1:], len(doc)]):
            yield from _at_most(doc[start:end], self.max_words)


@dataclass(frozen=True)
class DocSpans:
    """See `doc_spans`."""

    def __call__(self, docs: list[Doc]) -> list[list[Span]]:
        return [[doc[:]] for doc in docs]


@dataclass(frozen=True)
class StridedSpans:
    """See `strided_spans`."""

    window: int
    stride: int

    def __call__(self, docs: list[Doc]) -> list[list[Span]]:
        return [list(_windows(doc[:], self.window, self.stride)) for doc in docs]


def _at_most(sentence: Span, max_words: int | None) -> Iterator[Span]:
    if max_words is not None and len(sentence) > max_words:
        yield from _windows(sentence, max_words, max_words // 2)
    else:
        yield sentence


def _windows(span: Span, window: int, stride: int) -> Iterator[Span]:
    for start in range(0, len(span), stride):
        yield span[start : start + window]
        if start + window >= len(span):
            return


def _require_max_words(owner: str, max_words: int | None) -> None:
    expected = "a whole number from 2 up, or null for no maximum"
    require(owner, "max_words", max_words, max_words is None or max_words >= 2, expected)


def _owner(getter: str) -> str:
    return f"the span getter spacy_elmo.{getter}.v1"
