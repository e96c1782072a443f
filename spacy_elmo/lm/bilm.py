"""The bidirectional language model: words in, layers out (Peters et al. 2018, "Deep contextualized word representations").

A forward and a backward LSTM stack read each sentence independently over shared word vectors. The model is a function: it
keeps no state between calls, so a sentence has the same vectors alone, in any batch and in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from ..errors import ElmoError, Errors
from .batching import Packing, group_by_length, pack
from .characters import BEGIN_SENTENCE, END_SENTENCE, BoundaryWord, Word
from .config import BiLMConfig
from .devices import indices, to_device
from .lstm import LayerState, ProjectedLSTM, Recurrence
from .word_cache import WeightsKey, WordCache
from .word_encoders import build_encoder

CANONICAL_SENTENCE = tuple("The people who live here say that it was built in the old days .".split())
"""What is read, from zeros, to reach the canonical initial state."""

Dropout = Callable[[Tensor, Packing], Tensor]
"""From values, (places, width), and their layout to what is left of the values."""


class BiLMState(NamedTuple):
    """Where sentences ended. Row k belongs to sentence k.

    cell (Tensor): (2 directions, layers, rows, cells).
    hidden (Tensor): (2 directions, layers, rows, projection).
    """

    cell: Tensor
    hidden: Tensor

    def repeat(self, rows: int) -> BiLMState:
        """RETURNS (BiLMState): The one row of this state, `rows` times; views."""
        return BiLMState(*(part.expand(-1, -1, rows, -1) for part in self))

    def of_direction(self, direction: int, rows: Tensor) -> list[LayerState]:
        """RETURNS (list[LayerState]): The states of each layer of a direction, for some rows."""
        return [
            LayerState(cell[rows], hidden[rows]) for cell, hidden in zip(self.cell[direction], self.hidden[direction])
        ]


class BiLMOutput(NamedTuple):
    """The layers of a batch of sentences.

    layers (Tensor): (words, layers + 1, 2 · projection), the sentences one after another in the order given. Layer 0 is
        the word vector twice; layer l is the forward and the backward LSTM layer l side by side.
    lengths (list[int]): Words of each sentence.
    state (BiLMState | None): Where the sentences ended, in carry mode.
    """

    layers: Tensor
    lengths: list[int]
    state: BiLMState | None

    def split(self) -> list[Tensor]:
        """RETURNS (list[Tensor]): (words, layers + 1, 2 · projection) for each sentence; views."""
        return list(self.layers.split(self.lengths))


class LSTMStack(nn.ModuleList):
    """The layers of one direction, each reading the output of the one below.

    config (BiLMConfig): Shape and numerics.
    """

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__(ProjectedLSTM(config) for _ in range(config.n_layers))
        self.skip_connections = config.skip_connections

    @property
    def recurrence(self) -> Recurrence:
        """How the layers run."""
        return cast(ProjectedLSTM, self[0]).recurrence

    def set_recurrence(self, kind: Recurrence) -> None:
        """As `BiLM.set_recurrence`."""
        for layer in self:
            cast(ProjectedLSTM, layer).recurrence = kind

    def run(
        self,
        vectors: Tensor,
        rows: Tensor,
        packing: Packing,
        state: list[LayerState],
        dropout: Dropout | None = None,
    ) -> Iterator[tuple[Tensor, LayerState]]:
        """Run packed sentences through the layers.

        vectors (Tensor): (distinct words, projection).
        rows (Tensor): int64, (places,): the word at each place, in this direction's reading order.
        packing (Packing): The layout.
        state (list[LayerState]): Where each layer starts.
        dropout (Callable | None): Applied to the input of each layer and its packing; the skip connection carries what
            is left, as in bilm-tf.
        YIELDS (tuple[Tensor, LayerState]): For each layer its outputs, (places, projection), and where it ended.
        """
        inputs, places = vectors, rows if dropout is None else None
        if dropout is not None:
            inputs = vectors.index_select(0, rows)
        for depth, layer in enumerate(self):
            if dropout is not None:
                inputs = dropout(inputs, packing)
            outputs, ended = layer(inputs, packing, state[depth], places)
            if depth > 0 and self.skip_connections:
                outputs = outputs + inputs
            yield outputs, ended
            inputs, places = outputs, None


class BiLM(nn.Module):
    """A biLM with the weights of its token encoder and of its two LSTM stacks.

    config (BiLMConfig): Shape and numerics. Weights are drawn from torch's generator.
    vocabularies (Mapping | None): The entries of each table that the token encoder looks up, in the order of its rows:
        "words" for `token_encoder` "words", "words" and "characters" for "words_and_characters", None for "characters".

    RAISES (ConfigError): E006–E009 if the vocabularies are not those that the config calls for.
    """

    def __init__(self, config: BiLMConfig, vocabularies: Mapping[str, Sequence[str]] | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = build_encoder(config, vocabularies or {})
        self.forward_lm = LSTMStack(config)
        self.backward_lm = LSTMStack(config)
        self._word_cache = WordCache()
        self._start_cache: tuple[WeightsKey, BiLMState] | None = None

    def forward(
        self, sentences: Sequence[Sequence[Word]], state: BiLMState | None = None, max_batch_words: int = 8192
    ) -> BiLMOutput:
        """Run sentences through the model.

        Every sentence is framed by the words of begin and end, which take no part in the output. A sentence may have any
        length: it runs in windows of time steps that hand the state over, in both directions, so that neither direction
        loses anything and the memory in use beyond the output stays bounded. With gradients the whole graph is kept.

        sentences (Sequence[Sequence[str]]): Words of each sentence; a sentence may be empty.
        state (BiLMState | None): Carry mode: what came out of the batch before; sentence k starts where row k ended. Rows
            beyond the sentences are handed on, missing rows start from zeros.
        max_batch_words (int): Words that run at the same time; bounds the memory, changes no result.
        RETURNS (BiLMOutput): Layers, lengths and, in carry mode, the state after each sentence.
        RAISES (ElmoError): E003, E004 if the sentences are not lists of strings, E005 if the state does not fit.
        """
        _validate(sentences)
        lengths = [len(sentence) for sentence in sentences]
        with torch.set_grad_enabled(self.needs_graph()):
            if state is None and self.config.initial_state != "carry":
                layers, _ = self._run(sentences, self._sentence_start().repeat(len(sentences)), max_batch_words)
                return BiLMOutput(layers, lengths, None)
            framed = [(BEGIN_SENTENCE, *sentence, END_SENTENCE) for sentence in sentences]
            layers, ended = self._run(framed, self._carried(state, len(framed)), max_batch_words)
            inner = [0 < position <= n for n in lengths for position in range(n + 2)]
            return BiLMOutput(layers[torch.tensor(inner, dtype=torch.bool, device=layers.device)], lengths, ended)

    def encode_words(self, words: Sequence[Word]) -> Tensor:
        """Vectors of words, without context.

        words (Sequence[str]): The words.
        RETURNS (Tensor): (words, projection). If the encoder is frozen, vectors of words met before come from a bounded cache.
        """
        keys: list[Hashable] = list(map(self.encoder.key, words))
        if not _is_frozen(self.encoder):
            return self.encoder.encode(keys)
        with torch.no_grad():
            return self._word_cache.look_up(keys, self._weights_key(self.encoder), self.encoder.encode)

    def initial_state(self) -> BiLMState:
        """RETURNS (BiLMState): One row: where a sentence starts, before its first word of begin or end."""
        zero = self._zero_state(1)
        if self.config.initial_state != "canonical":
            return zero
        return self._run([(BEGIN_SENTENCE, *CANONICAL_SENTENCE, END_SENTENCE)], zero)[1]

    def needs_graph(self) -> bool:
        """RETURNS (bool): Whether gradients are wanted of any weight, here and now."""
        return torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.parameters())

    def set_recurrence(self, kind: Recurrence) -> None:
        """Choose how the LSTMs run. It changes no result beyond rounding, and is no part of config or weights.

        kind (str): "steps", "compiled" or "fused", see `ProjectedLSTM`.
        RAISES (ConfigError): E001 if it is unknown, E020 if it is "fused" and the config has clips, E025, E026 if it is
            "compiled" and the device is no CPU or numba does not work.
        """
        for stack in (self.forward_lm, self.backward_lm):
            stack.set_recurrence(kind)

    @property
    def recurrence(self) -> Recurrence:
        """How the LSTMs run."""
        return self.forward_lm.recurrence

    def clear_caches(self) -> None:
        """Forget word vectors and start states. Needed only if weights changed in a way that torch cannot see."""
        self._word_cache = WordCache()
        self._start_cache = None

    def _run(
        self, sentences: Sequence[Sequence[Word]], state: BiLMState, max_batch_words: int = 8192
    ) -> tuple[Tensor, BiLMState]:
        """Run sentences as they are, without framing; sentence k starts at row k of the state."""
        lengths = [len(sentence) for sentence in sentences]
        starts = [end - length for end, length in zip(accumulate(lengths), lengths)]
        vectors, rows = self._distinct_words(sentences)
        projection = self.config.projection
        layers = vectors.new_empty(len(rows), self.config.n_outputs, self.config.width)
        layers[:, 0, :projection] = layers[:, 0, projection:] = vectors[rows]
        ended = BiLMState(state.cell.clone(), state.hidden.clone())
        for group in group_by_length(lengths, max_batch_words):
            packing = pack([lengths[index] for index in group]).to(rows.device)
            words = torch.cat([torch.arange(starts[index], starts[index] + lengths[index]) for index in group])
            words, sentence = to_device(words, rows.device), indices(group, rows.device)
            directions = (self.forward_lm, packing.forward), (self.backward_lm, packing.backward)
            for direction, (stack, places) in enumerate(directions):
                where = words[places]
                begin = state.of_direction(direction, sentence)
                half = slice(direction * projection, (direction + 1) * projection)
                for depth, (outputs, end) in enumerate(stack.run(vectors, rows[where], packing, begin)):
                    layers[:, depth + 1, half].index_copy_(0, where, outputs)
                    ended.cell[direction, depth].index_copy_(0, sentence, end.cell)
                    ended.hidden[direction, depth].index_copy_(0, sentence, end.hidden)
        return layers, ended

    def _distinct_words(self, sentences: Sequence[Sequence[Word]]) -> tuple[Tensor, Tensor]:
        """Vectors of the distinct words, and for each word of the text the row of its vector."""
        index: dict[Word, int] = {}
        rows = [index.setdefault(word, len(index)) for sentence in sentences for word in sentence]
        vectors = self.encode_words(list(index))
        return vectors, indices(rows, vectors.device)

    def _sentence_start(self) -> BiLMState:
        """One row: the state after the word of begin, forward, and after the word of end, backward.

        Neither boundary needs to run with each sentence then: what they leave depends on the weights only.
        """
        key, frozen = self._weights_key(self), _is_frozen(self)
        cached = self._start_cache
        if frozen and cached is not None and cached[0] == key:
            return cached[1]
        _, after = self._run([(BEGIN_SENTENCE,), (END_SENTENCE,)], self.initial_state().repeat(2))
        start = BiLMState(*(torch.stack([part[0, :, :1], part[1, :, 1:]]) for part in after))
        if frozen:
            self._start_cache = (key, start)
        return start

    def _carried(self, state: BiLMState | None, sentences: int) -> BiLMState:
        """The caller's state with at least one row for each sentence."""
        zero = self._zero_state(sentences)
        if state is None:
            return zero
        rows = state.cell.shape[2] if state.cell.dim() == 4 else 0
        for part, needed in zip(state, zero):
            expected = (*needed.shape[:2], rows, needed.shape[3])
            if part.shape != expected:
                raise ElmoError(Errors.E005.format(given=tuple(part.shape), expected=expected))
        return BiLMState(*(torch.cat([part, fill[:, :, rows:]], 2) for part, fill in zip(state, zero)))

    def _zero_state(self, rows: int) -> BiLMState:
        config, like = self.config, next(self.parameters())
        sizes = (config.cells, config.projection)
        return BiLMState(*(like.new_zeros(2, config.n_layers, rows, size) for size in sizes))

    @staticmethod
    def _weights_key(module: nn.Module) -> WeightsKey:
        """Changes whenever torch sees a change of the weights."""
        return tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in module.parameters())


def _is_frozen(module: nn.Module) -> bool:
    """Whether no weight can be trained. What can is never cached: a fused optimizer changes weights unseen by torch."""
    return not any(parameter.requires_grad for parameter in module.parameters())


def _validate(sentences: Sequence[Sequence[Word]]) -> None:
    for index, sentence in enumerate(sentences):
        if isinstance(sentence, (str, bytes)):
            raise ElmoError(Errors.E003.format(index=index, text=sentence[:40]))
        for position, word in enumerate(sentence):
            if not isinstance(word, (str, BoundaryWord)):
                kind = type(word).__name__
                raise ElmoError(Errors.E004.format(position=position, index=index, value=word, type=kind))
