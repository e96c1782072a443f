"""The held-out text of a run, and what was last found on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain

from .corpus import Sentence, text_checksum
from .distributed import Workers
from .evaluate import Perplexity, combined, perplexity
from .interrupts import StopRequest
from .learner import Learner
from .metrics import Evaluation
from .vocabulary import Vocabulary


class HeldOut:
    """Text that a run is measured on.

    domains (Mapping): Its sentences, by domain; may be empty.
    last (Evaluation | None): The newest evaluation, if there was one.
    """

    def __init__(self, domains: Mapping[str, list[Sentence]]) -> None:
        self.domains = dict(domains)
        self.last: Evaluation | None = None

    @cached_property
    def checksum(self) -> str:
        """Of the text: what was found on other text says nothing of this one."""
        return text_checksum(chain.from_iterable(self.domains.values()))

    def take_over(self, last: Evaluation | None) -> None:
        """Go on from an earlier evaluation. On other text than before weights are scored anew; without any, what was found
        before still holds.

        last (Evaluation | None): The newest one.
        """
        if last is not None and (not self.domains or last.held_out == self.checksum):
            self.last = last

    def at(self, step: int) -> Perplexity | None:
        """RETURNS (Perplexity | None): Of the weights of this step; an evaluation of others says nothing of them."""
        return self.last.perplexity if self.last is not None and self.last.step == step else None

    def measure(
        self, learner: Learner, vocabulary: Vocabulary, workers: Workers, stop: StopRequest
    ) -> dict[str, Perplexity]:
        """Score the text in float32. Process 0 does; if that is asked to stop meanwhile, all of them do.

        learner (Learner), vocabulary (Vocabulary): The model and its words.
        workers (Workers): The processes of the run.
        stop (StopRequest): Whether the run is to stop.
        RETURNS (dict[str, Perplexity]): By domain.
        RAISES (KeyboardInterrupt): If it is to stop. (CorpusError): E203 if there is no sentence.
        """
        found: dict[str, Perplexity] | None = None
        if workers.is_first:
            with suppress(KeyboardInterrupt):  # the others are to hear of it first
                found = {
                    domain: perplexity(learner.bilm, learner.head, vocabulary, _until(stop, sentences))
                    for domain, sentences in self.domains.items()
                }
        found = workers.of_first(found)
        if found is None:
            raise KeyboardInterrupt
        return {domain: Perplexity(*values) for domain, values in found.items()}

    def note(self, step: int, found: Mapping[str, Perplexity]) -> Evaluation:
        """Take in what was measured.

        step (int): Steps done.
        found (Mapping): The perplexity of each domain.
        RETURNS (Evaluation): Of all the text.
        """
        self.last = Evaluation(step, self.checksum, combined(found.values()))
        return self.last


def _until(stop: StopRequest, sentences: Sequence[Sentence]) -> Iterator[Sentence]:
    for sentence in sentences:
        if stop.requested:
            raise KeyboardInterrupt
        yield sentence
