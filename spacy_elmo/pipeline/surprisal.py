"""How unexpected each token of a Doc is to the language model of an elmo pipe, in both directions."""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import srsly
from spacy.attrs import IS_SPACE
from spacy.tokens import Doc
from thinc.api import Model

from ..errors import Errors, PipelineError
from ..layers.bilm_model import bilm_shim, read_ranges
from ..layers.word_sequences import word_sequences
from ..lm.locks import ForkSafeLock
from ..weights.embedded import EMBEDDED_MODEL
from .checks import require

if TYPE_CHECKING:
    from ..lm.bilm import BiLM
    from ..lm.scoring import SentenceScores, WordIds
    from ..lm.softmax import OutputHead
    from ..weights.source import Source

_SCORING = ForkSafeLock()


def build_surprisal(name: str, wanted: bool) -> Surprisal | None:
    """RETURNS (Surprisal | None): What tells the surprisal of an elmo pipe, if it is wanted.

    RAISES (ConfigError): E300 if the setting is no truth value.
    """
    require(name, "surprisal", wanted, isinstance(wanted, bool), "true or false")
    return Surprisal(name) if wanted else None


class Surprisal:
    """How unexpected each token is to an elmo pipe's biLM: from its left and from its right, within what is read as one sequence
    (a sentence, where sentences are marked).

    It holds the softmax and its vocabulary: read when they are first needed, kept where the pipe is kept. A word that the softmax
    does not know counts as the unknown word. The softmax is not trained: a biLM that is not frozen moves away from it.

    name (str): Name of the pipe, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._head: OutputHead | None = None
        self._ids: WordIds | None = None
        self._bound_to: BiLM | None = None
        # Whether the softmax is yet to be read from where the biLM of the pipe comes from.
        self._is_awaited = True

    def load(self, model: Model[Any, Any], source: Source | None) -> None:
        """Read a biLM together with its softmax, so that they belong to each other.

        model (Model): The model of the pipe, whose biLM is replaced.
        source (str | Path | Sequence | None): See `weights.source`; None for the embedded model.
        RAISES (PipelineError): E370 if there is no softmax with its vocabulary. (WeightsError): As `load_model`.
        """
        bilm_shim(model).bilm = self._read(source)

    def ensure(self, model: Model[Any, Any]) -> None:
        """Read the softmax, if that is yet to be done, and with it the biLM.

        model (Model): The model of the pipe.
        RAISES (PipelineError): E370 if the weights have no softmax with its vocabulary, E371 if the biLM was replaced by one that
            came without. (WeightsError): As `load_model`.
        """
        if self._head is not None:
            return
        with _SCORING.held():
            if self._head is None and self._is_awaited:
                shim = bilm_shim(model)
                bilm = self._read(shim.source)
                if not shim.is_loaded:
                    shim.bilm = bilm
        if self._head is None:
            raise PipelineError(Errors.E371.format(name=self.name))

    def forget(self) -> None:
        """The biLM was replaced: the softmax is not that of the new one."""
        self._take(None, None)

    def of_docs(self, model: Model[Any, Any], docs: Sequence[Doc]) -> list[np.ndarray]:
        """Score the tokens of Docs in the sequences that the biLM reads, each from its own begin to its own end.

        model (Model): The model of the pipe.
        docs (Sequence[Doc]): The Docs.
        RETURNS (list[ndarray]): float32, (tokens, 2), in bits: from the left, from the right. Zeros for whitespace tokens; NaN for
            tokens that no sequence has. A token in several is taken from where its vector is.
        RAISES (PipelineError): E370, E371 as `ensure`.
        """
        self.ensure(model)
        ranges = read_ranges(model, docs)
        sequences = [word_sequences(doc, [doc[start:end] for start, end in each]) for doc, each in zip(docs, ranges)]
        scores = iter(self._score(model, [words for each in sequences for words in each.words]))
        found = []
        for doc, (words, rows, tokens) in zip(docs, sequences):
            values = np.full((len(doc), 2), np.nan, dtype=np.float32)
            if len(doc):
                values[doc.to_array(IS_SPACE) != 0] = 0
            if words:
                bits = np.concatenate([next(scores).words.numpy() for _ in words], axis=1).T / -math.log(2)
                values[tokens] = bits[rows]
            found.append(values)
        return found

    def save(self, directory: Path) -> None:
        """Write the softmax and its vocabulary beside the weights of the biLM.

        directory (Path): A native weights directory.
        """
        from ..weights.bilm_vocabulary import vocabulary_bytes
        from ..weights.files import write_atomically
        from ..weights.native import VOCABULARY_FILE, save_head

        head, ids = self._required()
        words = gzip.compress(vocabulary_bytes(ids.words), mtime=0)
        write_atomically(directory / VOCABULARY_FILE, words)
        save_head(head, directory)

    def read(self, directory: Path) -> None:
        """Take over what `save` wrote.

        RAISES (PipelineError): E370 if it is not there. (WeightsError): E1xx if it is broken.
        """
        from ..weights.bilm_vocabulary import read_words
        from ..weights.native import SOFTMAX_FILE, VOCABULARY_FILE, load_head

        head = load_head(directory) if (directory / SOFTMAX_FILE).is_file() else None
        words = read_words(directory / VOCABULARY_FILE) if (directory / VOCABULARY_FILE).is_file() else None
        self._take_checked(head, words)

    def to_bytes(self) -> bytes:
        """RETURNS (bytes): The softmax and its vocabulary."""
        from ..weights.native import head_to_bytes

        head, ids = self._required()
        data: bytes = srsly.msgpack_dumps({"softmax": head_to_bytes(head), "words": list(ids.words)})
        return data

    def from_bytes(self, data: bytes) -> None:
        """The inverse of `to_bytes`."""
        from ..weights.native import head_from_bytes

        parts = srsly.msgpack_loads(data)
        self._take_checked(head_from_bytes(parts["softmax"]), parts["words"])

    def __getstate__(self) -> dict[str, Any]:
        data = None if self._head is None else self.to_bytes()
        return {"name": self.name, "awaited": self._is_awaited, "data": data}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Surprisal.__init__(self, state["name"])
        if state["data"] is not None:
            self.from_bytes(state["data"])
        self._is_awaited = state["awaited"]

    def _score(self, model: Model[Any, Any], sentences: list[list[str]]) -> list[SentenceScores]:
        from ..lm.scoring import word_log_probabilities
        from ..lm.softmax import VocabularyEncoder

        bilm = bilm_shim(model).bilm
        head, ids = self._required()
        # A head that is tied to a biLM is prepared for one batch at a time.
        with _SCORING.held():
            if self._bound_to is not bilm:
                head.to(next(bilm.parameters()).device).bind(VocabularyEncoder(bilm, ids.words))
                self._bound_to = bilm
            with head.prepared():
                words = model.attrs["reading"].max_batch_words
                return word_log_probabilities(bilm, head, ids.id_of, sentences, words)

    def _read(self, source: Source | None) -> BiLM:
        from ..weights.formats import load_model

        loaded = load_model(EMBEDDED_MODEL if source is None else source, with_softmax=True)
        self._take_checked(loaded.head, loaded.vocabulary)
        return loaded.bilm

    def _take_checked(self, head: OutputHead | None, words: Sequence[str] | None) -> None:
        from ..lm.scoring import WordIds, scoring_problem

        problem = scoring_problem(head, words)
        if problem is None and head is not None and words is not None and head.settings["n_words"] != len(words):
            problem = f"its softmax has {head.settings['n_words']:,} words, but its vocabulary {len(words):,}"
        if problem is not None or words is None:
            raise PipelineError(Errors.E370.format(name=self.name, problem=problem))
        self._take(head, WordIds(words))

    def _take(self, head: OutputHead | None, ids: WordIds | None) -> None:
        self._ids, self._bound_to, self._is_awaited = ids, None, False
        self._head = None if head is None else head.requires_grad_(False).eval()

    def _required(self) -> tuple[OutputHead, WordIds]:
        if self._head is None or self._ids is None:
            raise PipelineError(Errors.E371.format(name=self.name))
        return self._head, self._ids
