"""The biLM of ELMo in plain numpy: one sentence, one step, one word at a time, with nothing shared with spacy_elmo.lm.

It is what the torch code is compared with, so it is written to be read against the papers and not to be fast. The dtype
of the weights (float32 or float64) is the dtype of everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spacy_elmo.lm.config import BiLMConfig

Array = NDArray[np.floating]

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 256, 257, 258, 259, 260
DIRECTIONS = ("forward_lm", "backward_lm")


class OracleState(NamedTuple):
    """cell (directions, n_layers, rows, cells) and hidden (directions, n_layers, rows, projection)."""

    cell: Array
    hidden: Array


def word_ids(word: str, max_characters: int) -> list[int]:
    """begin, at most `max_characters - 2` bytes of the word's UTF-8 (lone surrogates have none), end, padding."""
    letters = "".join(letter for letter in word if not 0xD800 <= ord(letter) <= 0xDFFF)
    return _framed(list(letters.encode("utf8"))[: max_characters - 2], max_characters)


def boundary_ids(boundary: int, max_characters: int) -> list[int]:
    """The ids of the word that stands before (BEGIN_SENTENCE) or after (END_SENTENCE) each sentence."""
    return _framed([boundary], max_characters)


def _framed(letters: list[int], max_characters: int) -> list[int]:
    ids = [BEGIN_WORD, *letters, END_WORD]
    return ids + [PADDING] * (max_characters - len(ids))


def sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


class OracleBiLM:
    """A biLM whose every output can be checked by hand.

    config (BiLMConfig): The shape and the numerics.
    parameters (Mapping[str, Array]): The arrays by the names of BiLM's state_dict, all of one dtype.
    canonical_sentence (Sequence[str]): The sentence whose final state every sentence starts from if
        `config.initial_state` is "canonical"; not used otherwise.
    vocabularies (Mapping[str, Sequence[str]]): The entries of the tables of words and characters, if the config has them.
    """

    def __init__(
        self,
        config: BiLMConfig,
        parameters: Mapping[str, Array],
        canonical_sentence: Sequence[str] = (),
        vocabularies: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.config = config
        self.parameters = dict(parameters)
        self.dtype = self.parameters["forward_lm.0.bias"].dtype
        self.canonical_sentence = list(canonical_sentence)
        self.vocabularies = {name: list(entries) for name, entries in (vocabularies or {}).items()}

    # The token encoders.

    def vector(self, word: str | int) -> Array:
        """The vector (projection,) of a word of text, or of the word BEGIN_SENTENCE or END_SENTENCE."""
        if self.config.token_encoder == "words":
            return self._row_of_words(word)
        if self.config.token_encoder == "words_and_characters":
            return self._row_and_characters(word)
        size = self.config.max_characters
        return self.word_vector(boundary_ids(word, size) if isinstance(word, int) else word_ids(word, size))

    def word_vector(self, ids: Sequence[int]) -> Array:
        """The vector (projection,) of the word with these character ids."""
        x = self._features(ids)
        return x if self.config.n_filters == self.config.projection else self._project(x)

    def _project(self, x: Array) -> Array:
        return x @ self.parameters["encoder.projection.weight"] + self.parameters["encoder.projection.bias"]

    def _features(self, ids: Sequence[int]) -> Array:
        characters = self.parameters["encoder.characters"][list(ids)]
        x = np.concatenate([self._convolve(i, characters) for i in range(len(self.config.filters))])
        for k in range(self.config.n_highway):
            x = self._highway(k, x)
        return x

    def _row_of_words(self, word: str | int) -> Array:
        """A word that is not there, or spells a mark, is `<UNK>`, or zeros without `<UNK>`."""
        words = self.vocabularies["words"]
        if isinstance(word, int):
            word = "<S>" if word == BEGIN_SENTENCE else "</S>"
        elif word not in words or word in ("<S>", "</S>"):
            word = "<UNK>"
        if word not in words:
            return np.zeros(self.config.projection, self.dtype)
        return self.parameters["encoder.words"][words.index(word)]

    def _row_and_characters(self, word: str | int) -> Array:
        """A row of the table of words, then the filters over characters. Words begin with `<eow>` and end with `<bow>`."""
        words, characters = self.vocabularies["words"], self.vocabularies["characters"]
        if isinstance(word, int):
            entry = "<bos>" if word == BEGIN_SENTENCE else "<eos>"
            letters = [entry]
        else:
            letters = list(word[: self.config.max_characters - 2])
            entry = "".join(letters)
            if entry not in words or entry in ("<bos>", "<eos>", "<pad>"):
                entry = "<oov>"
        letters = ["<eow>", *(letter if letter in characters else "<oov>" for letter in letters), "<bow>"]
        letters += ["<pad>"] * (self.config.max_characters - len(letters))
        features = self._features([characters.index(letter) for letter in letters])
        return self._project(np.concatenate([self.parameters["encoder.words"][words.index(entry)], features]))

    def _convolve(self, i: int, characters: Array) -> Array:
        width, _ = self.config.filters[i]
        weight = self.parameters[f"encoder.convolutions.{i}.weight"]
        bias = self.parameters[f"encoder.convolutions.{i}.bias"]
        maximum = np.full(bias.shape, -np.inf, dtype=self.dtype)
        for start in range(len(characters) - width + 1):
            window = np.concatenate(list(characters[start : start + width]))
            maximum = np.maximum(maximum, window @ weight + bias)
        return np.tanh(maximum) if self.config.activation == "tanh" else np.maximum(maximum, 0)

    def _highway(self, k: int, x: Array) -> Array:
        name = f"encoder.highways.{k}."
        transformed = x @ self.parameters[name + "transform_weight"] + self.parameters[name + "transform_bias"]
        gate = sigmoid(x @ self.parameters[name + "gate_weight"] + self.parameters[name + "gate_bias"])
        return gate * np.maximum(transformed, 0) + (1 - gate) * x

    # One direction of one layer.

    def _lstm(self, name: str, inputs: list[Array], cell: Array, hidden: Array) -> tuple[list[Array], Array, Array]:
        """Run the LSTM over the inputs; the outputs of all steps, the final cell and the final hidden state."""
        outputs = []
        for x in inputs:
            cell, hidden = self._step(name, x, cell, hidden)
            outputs.append(hidden)
        return outputs, cell, hidden

    def _step(self, name: str, x: Array, cell: Array, hidden: Array) -> tuple[Array, Array]:
        gates = (
            x @ self.parameters[name + "input_weight"]
            + hidden @ self.parameters[name + "recurrent_weight"]
            + self.parameters[name + "bias"]
        )
        input_gate, forget_gate, output_gate, candidate = np.split(gates, 4)
        cell = sigmoid(forget_gate + 1.0) * cell + sigmoid(input_gate) * np.tanh(candidate)
        if self.config.cell_clip is not None:
            cell = np.clip(cell, -self.config.cell_clip, self.config.cell_clip)
        hidden = sigmoid(output_gate) * np.tanh(cell)
        if self.config.cells != self.config.projection:
            hidden = hidden @ self.parameters[name + "projection_weight"]
            if self.config.projection_clip is not None:
                hidden = np.clip(hidden, -self.config.projection_clip, self.config.projection_clip)
        return cell, hidden

    # A sentence.

    def zero_state(self, rows: int = 1) -> OracleState:
        shape = (len(DIRECTIONS), self.config.n_layers, rows)
        return OracleState(
            np.zeros((*shape, self.config.cells), self.dtype), np.zeros((*shape, self.config.projection), self.dtype)
        )

    def initial_state(self) -> OracleState:
        """The state of one row that a sentence starts from if no state is handed in."""
        if self.config.initial_state == "canonical":
            return self._run(self.canonical_sentence, self.zero_state())[1]
        return self.zero_state()

    def embed(self, sentence: Sequence[str], state: OracleState | None = None) -> tuple[Array, OracleState]:
        """The layers (words, n_layers + 1, 2 * projection) of one sentence, and the state of one row after it."""
        layers, state = self._run(sentence, self.initial_state() if state is None else state)
        return layers[1:-1], state

    def _run(self, sentence: Sequence[str], state: OracleState) -> tuple[Array, OracleState]:
        """Embed with the vectors of the sentence's boundaries left in: two more than words."""
        words = [self.vector(word) for word in (BEGIN_SENTENCE, *sentence, END_SENTENCE)]
        cells, hiddens = state.cell.copy(), state.hidden.copy()
        by_direction = []
        for d, direction in enumerate(DIRECTIONS):
            inputs = words[::-1] if direction == "backward_lm" else words
            layers = [inputs]
            for layer in range(self.config.n_layers):
                outputs, cells[d, layer, 0], hiddens[d, layer, 0] = self._lstm(
                    f"{direction}.{layer}.", inputs, cells[d, layer, 0], hiddens[d, layer, 0]
                )
                if self.config.skip_connections and layer > 0:
                    outputs = [output + x for output, x in zip(outputs, inputs, strict=True)]
                layers.append(outputs)
                inputs = outputs
            by_direction.append([steps[::-1] if direction == "backward_lm" else steps for steps in layers])
        forward, backward = (np.array(layers) for layers in by_direction)
        return np.concatenate([forward, backward], axis=2).transpose(1, 0, 2), OracleState(cells, hiddens)

    # A batch that carries state, row by row.

    def embed_batch(
        self, sentences: Sequence[Sequence[str]], state: OracleState | None = None
    ) -> tuple[list[Array], OracleState]:
        """Embed sentence k from row k of the state. Rows that are missing are zeros; rows left over stay."""
        state = self.zero_state(0) if state is None else state
        missing = self.zero_state(max(0, len(sentences) - state.cell.shape[2]))
        cell = np.concatenate([state.cell, missing.cell], axis=2)
        hidden = np.concatenate([state.hidden, missing.hidden], axis=2)
        layers = []
        for row, sentence in enumerate(sentences):
            here = slice(row, row + 1)
            output, (cell[:, :, here], hidden[:, :, here]) = self.embed(
                sentence, OracleState(cell[:, :, here], hidden[:, :, here])
            )
            layers.append(output)
        return layers, OracleState(cell, hidden)


# Random weights.


def parameter_shapes(config: BiLMConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter of a biLM and its shape."""
    shapes = {"encoder.words": (config.n_words, config.projection)}
    if config.token_encoder != "words":
        shapes = _character_shapes(config)
    projection, cells = config.projection, config.cells
    for direction in DIRECTIONS:
        for layer in range(config.n_layers):
            shapes[f"{direction}.{layer}.input_weight"] = (projection, 4 * cells)
            shapes[f"{direction}.{layer}.recurrent_weight"] = (projection, 4 * cells)
            shapes[f"{direction}.{layer}.bias"] = (4 * cells,)
            if cells != projection:
                shapes[f"{direction}.{layer}.projection_weight"] = (cells, projection)
    return shapes


def _character_shapes(config: BiLMConfig) -> dict[str, tuple[int, ...]]:
    beside_words = config.token_encoder == "words_and_characters"
    width, projection = config.n_filters, config.projection
    rows = config.n_characters if beside_words else 261
    shapes: dict[str, tuple[int, ...]] = {"encoder.characters": (rows, config.character_dim)}
    for i, (positions, number) in enumerate(config.filters):
        shapes[f"encoder.convolutions.{i}.weight"] = (positions * config.character_dim, number)
        shapes[f"encoder.convolutions.{i}.bias"] = (number,)
    for k in range(config.n_highway):
        for part in ("transform", "gate"):
            shapes[f"encoder.highways.{k}.{part}_weight"] = (width, width)
            shapes[f"encoder.highways.{k}.{part}_bias"] = (width,)
    if beside_words:
        shapes["encoder.words"] = (config.n_words, config.word_dim)
    if beside_words or width != projection:
        shapes["encoder.projection.weight"] = (width + config.word_dim, projection)
        shapes["encoder.projection.bias"] = (projection,)
    return shapes


def random_parameters(config: BiLMConfig, seed: int, dtype: str, lstm_scale: float = 1.0) -> dict[str, Array]:
    """Weights that keep values near 1, with biases that are not zero, so that nothing left out goes unnoticed.

    A larger `lstm_scale` drives cells and projections into clips.
    """
    random = np.random.default_rng(seed)
    parameters = {}
    for name, shape in parameter_shapes(config).items():
        if len(shape) == 1:
            values = random.normal(0, 0.5, shape)
        else:
            fan_in = 1 if name in ("encoder.characters", "encoder.words") else shape[0]
            scale = lstm_scale if name.startswith(DIRECTIONS) else 1.0
            values = random.normal(0, scale / np.sqrt(fan_in), shape)
        parameters[name] = values.astype(dtype)
    return parameters
