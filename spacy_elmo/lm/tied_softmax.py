"""An output head whose word vectors come from the characters of the words (Józefowicz et al. 2016, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..errors import ElmoError, Errors
from .characters import BEGIN_SENTENCE, END_SENTENCE, Word
from .devices import to_device
from .output_head import Encode, OutputHead, linear_log_probabilities, require_whole
from .sampled_softmax import Sampling, sampled_log_probabilities
from .word_sampling import Distribution

if TYPE_CHECKING:
    from .bilm import BiLM

_BOUNDARIES: dict[str, Word] = {"<S>": BEGIN_SENTENCE, "</S>": END_SENTENCE}


class TiedSoftmax(OutputHead):
    """The weights of a word are its vector from the token encoder, mapped, and a small correction of its own, mapped too,
    since words of like letters may mean different things. The bias is the word's own.

    It does not own the encoder: `bind` tells it where to get vectors. It is trained on samples, see `SampledSoftmax`.

    projection (int): Width of a hidden state and of a word's vector.
    n_words (int): Words of the vocabulary.
    n_samples (int): Words of a sample. More than half of the vocabulary are not drawn, but all words used.
    distribution (str): Which words are drawn, see `WordSampler`; "unigram" needs `set_counts`.
    correction (int): Width of the correction, 0 for none.
    """

    kind = "tied"

    def __init__(
        self,
        projection: int,
        n_words: int,
        n_samples: int = 8192,
        distribution: Distribution = "log-uniform",
        correction: int = 32,
    ) -> None:
        super().__init__()
        require_whole(1, projection=projection, n_words=n_words)
        require_whole(0, correction=correction)
        self.sampling = Sampling(n_words, n_samples, distribution)
        sizes = {"projection": projection, "n_words": n_words}
        self.settings = {"kind": self.kind, **sizes, **self.sampling.settings, "correction": correction}
        # Vectors of words have values of about 1: mapped, they are as large as the weights of a full softmax.
        self.map = nn.Parameter(nn.init.normal_(torch.empty(projection, projection), std=1 / projection))
        self.bias = nn.Parameter(torch.zeros(n_words))
        self.correction: nn.Parameter | None = None
        if correction:
            self.correction = nn.Parameter(torch.zeros(n_words, correction))
            scale = (correction * projection) ** -0.5
            self.correction_map = nn.Parameter(nn.init.normal_(torch.empty(correction, projection), std=scale))
        self._encode: Encode | None = None
        self._prepared: Tensor | None = None

    def bind(self, encode: Encode) -> None:
        """Tell how to get vectors of words.

        encode (Callable): From ids of the vocabulary to (ids, projection), with gradients where they are wanted, such as
            a `VocabularyEncoder`.
        """
        self._encode = encode

    def set_counts(self, counts: Sequence[int]) -> None:
        """As `SampledSoftmax.set_counts`."""
        self.sampling.set_counts(counts)

    def forward(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Log-probabilities of words, normalised over the whole vocabulary, which is encoded anew each time but within
        `prepared`.

        hidden (Tensor): (places, projection). words (Tensor): int64, (places,). RETURNS (Tensor): (places,), in nats.
        RAISES (ElmoError): E021 if the head is not bound.
        """
        weight = self._all_weights() if self._prepared is None else self._prepared
        return linear_log_probabilities(hidden, weight, self.bias, words)

    def training_log_probabilities(
        self, hidden: Tensor, words: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """As `SampledSoftmax.training_log_probabilities`.

        RAISES (ElmoError): E021 if the head is not bound, E022 if words are drawn by counts that are not known, E024
            within `prepared`.
        """
        if self._prepared is not None:
            raise ElmoError(Errors.E024)
        if self.sampling.takes_all:
            return super().training_log_probabilities(hidden, words)
        sample = self.sampling.draw(words, generator)
        distinct, place = torch.unique(sample.needed, return_inverse=True)
        weight = self._weights(distinct).index_select(0, to_device(place, hidden.device))
        bias = self.bias.index_select(0, to_device(sample.needed, hidden.device))
        return sampled_log_probabilities(hidden, weight, bias, sample)

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """As `OutputHead.prepared`: the vocabulary is encoded once.

        RAISES (ElmoError): E021 if the head is not bound.
        """
        with super().prepared():
            before = self._prepared
            self._prepared = self._all_weights()
            try:
                yield
            finally:
                self._prepared = before

    def _all_weights(self) -> Tensor:
        return self._weights(torch.arange(self.settings["n_words"]))

    def _weights(self, words: Tensor) -> Tensor:
        """(words, projection), in the precision of the parameters; `words` on the CPU."""
        if self._encode is None:
            raise ElmoError(Errors.E021)
        weights = torch.mm(self._encode(words.tolist()), self.map)
        if self.correction is not None:
            of_words = self.correction.index_select(0, to_device(words, self.correction.device))
            weights = weights + torch.mm(of_words, self.correction_map)
        return weights.to(self.bias.dtype)


class VocabularyEncoder:
    """Vectors of the words of a vocabulary, for `TiedSoftmax.bind`.

    bilm (BiLM): Whose token encoder to use.
    words (Sequence[str]): The vocabulary; "<S>" and "</S>" are the boundaries of a sentence.
    """

    def __init__(self, bilm: BiLM, words: Sequence[str]) -> None:
        self._bilm = bilm
        self._words = [_BOUNDARIES.get(word, word) for word in words]

    def __call__(self, ids: Sequence[int]) -> Tensor:
        """RETURNS (Tensor): (ids, projection)."""
        return self._bilm.encode_words([self._words[index] for index in ids])
