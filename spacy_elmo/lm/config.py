"""Every number that fixes a biLM, validated."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from ..errors import ConfigError, Errors

Activation = Literal["relu", "tanh"]
InitialState = Literal["zero", "canonical", "carry"]
TokenEncoder = Literal["characters", "words", "words_and_characters"]

N_CHARACTERS = 261
"""Rows of the character table: 256 byte values, begin/end of sentence, begin/end of word, padding."""

MAX_WIDTH, MAX_LAYERS, MAX_CHARACTERS, MAX_CLIP, MAX_ENTRIES = 2**16, 1000, 10_000, 1e9, 2**24
"""Far above any model there is: beyond them is a mistake or a broken file, to be named before memory is taken."""

_CHARACTER_SETTINGS = ("character_dim", "filters", "max_characters", "activation", "n_highway")
_UNUSED: dict[TokenEncoder, tuple[str, ...]] = {
    "characters": ("n_words", "word_dim", "n_characters"),
    "words": ("word_dim", "n_characters", *_CHARACTER_SETTINGS),
    "words_and_characters": (),
}


@dataclass(frozen=True)
class BiLMConfig:
    """The shape and the numerics of a biLM (Peters et al. 2018, section 3; defaults are the published full size).

    Widths and the filters together may be up to 2**16, layers and highways up to 1000 each, clips up to 1e9,
    vocabularies up to 2**24 entries. Settings that the token encoder does not use must keep their defaults.

    character_dim (int): Width of a character embedding.
    filters (tuple): Character convolutions as (width in characters, number of filters).
    max_characters (int): Positions of a word, up to 10,000: begin, at most `max_characters - 2` bytes, end, padding.
    activation (str): "relu" or "tanh", after the max over positions.
    n_highway (int): Highway layers over the convolutions; 0 for none.
    projection (int): Width of a word vector and of each direction of each layer.
    cells (int): LSTM cells of each direction of each layer. As many as `projection` mean an LSTM without projection.
    n_layers (int): LSTM layers of each direction.
    skip_connections (bool): Add a layer's input to its output, from the second layer on.
    cell_clip (float | None): Bound of the LSTM cell, None for no bound.
    projection_clip (float | None): Bound of the projected state, None for no bound.
    initial_state (str): Where every sentence starts. "zero": from zeros. "canonical": from the state that one fixed
        sentence leaves. "carry": from the state that the caller hands in, as bilm-tf and AllenNLP do.
    token_encoder (str): What word vectors are made of. "characters": the bytes of the word. "words": a row of a table.
        "words_and_characters": both, as in ELMoForManyLangs, with characters in place of bytes.
    n_words (int): Rows of the table of words, 0 without one.
    word_dim (int): Width of a row beside characters, 0 otherwise: a table alone is as wide as `projection`.
    n_characters (int): Rows of the table of characters beside words, 0 otherwise: that of bytes always has 261.

    RAISES (ConfigError): E001 if a setting cannot be.
    """

    character_dim: int = 16
    filters: tuple[tuple[int, int], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    max_characters: int = 50
    activation: Activation = "relu"
    n_highway: int = 2
    projection: int = 512
    cells: int = 4096
    n_layers: int = 2
    skip_connections: bool = True
    cell_clip: float | None = 3.0
    projection_clip: float | None = 3.0
    initial_state: InitialState = "zero"
    token_encoder: TokenEncoder = "characters"
    n_words: int = 0
    word_dim: int = 0
    n_characters: int = 0

    def __post_init__(self) -> None:
        for name in ("character_dim", "projection", "cells"):
            _require_int(self, name, 1, MAX_WIDTH)
        _require_int(self, "n_layers", 1, MAX_LAYERS)
        _require_int(self, "n_highway", 0, MAX_LAYERS)
        _require_int(self, "max_characters", 3, MAX_CHARACTERS)
        _require(self, "activation", self.activation in get_args(Activation), "one of " + str(get_args(Activation)))
        states = get_args(InitialState)
        _require(self, "initial_state", self.initial_state in states, f"one of {states}")
        _require(self, "skip_connections", isinstance(self.skip_connections, bool), "true or false")
        expected = f"a number above 0, at most {MAX_CLIP:g}, or None for no clipping"
        for name in ("cell_clip", "projection_clip"):
            clip = getattr(self, name)
            _require(self, name, clip is None or _is_positive(clip, MAX_CLIP), expected)
        self._validate_filters()
        self._validate_token_encoder()

    def _validate_token_encoder(self) -> None:
        encoders = get_args(TokenEncoder)
        _require(self, "token_encoder", self.token_encoder in encoders, f"one of {encoders}")
        unused = _UNUSED[self.token_encoder]
        for name, most in (("n_words", MAX_ENTRIES), ("word_dim", MAX_WIDTH), ("n_characters", MAX_ENTRIES)):
            if name not in unused:
                _require_int(self, name, 1, most)
        for field in fields(self):
            if field.name in unused:
                expected = f"left at {field.default!r} where 'token_encoder' is {self.token_encoder!r}"
                _require(self, field.name, getattr(self, field.name) == field.default, expected)

    def _validate_filters(self) -> None:
        width = f"width from 1 to max_characters={self.max_characters}"
        expected = f"pairs ({width}, number of filters from 1 up), with at most {MAX_WIDTH} filters together"
        try:
            filters = tuple((width, number) for width, number in self.filters)
        except (TypeError, ValueError):
            filters = ()
        fits = all(
            _is_int(width, 1, self.max_characters) and _is_int(number, 1, MAX_WIDTH) for width, number in filters
        )
        together = sum(number for _, number in filters) if fits else 0
        _require(self, "filters", 0 < together <= MAX_WIDTH, expected)
        object.__setattr__(self, "filters", filters)

    @property
    def n_filters(self) -> int:
        """Filters of all widths together."""
        return sum(number for _, number in self.filters)

    @property
    def width(self) -> int:
        """Width of a layer's output: forward and backward direction side by side."""
        return 2 * self.projection

    @property
    def n_outputs(self) -> int:
        """Layers that come out: the character encoder and each LSTM layer."""
        return self.n_layers + 1

    @property
    def has_character_projection(self) -> bool:
        """Whether the encoder projects; bilm-tf leaves the projection out where the widths agree already."""
        if self.token_encoder == "characters":
            return self.n_filters != self.projection
        return self.token_encoder == "words_and_characters"

    @property
    def has_lstm_projection(self) -> bool:
        """Whether the LSTM projects its output; with as many cells as projections it does not."""
        return self.cells != self.projection

    def to_dict(self) -> dict[str, Any]:
        """RETURNS (dict): The settings in JSON's types, without those that the token encoder does not use."""
        settings = {**asdict(self), "filters": [list(pair) for pair in self.filters]}
        unused = set(_UNUSED[self.token_encoder])
        if self.token_encoder == "characters":
            unused.add("token_encoder")  # configs without it are older than the other encoders
        return {name: value for name, value in settings.items() if name not in unused}

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> BiLMConfig:
        """The inverse of `to_dict`; settings left out take their defaults.

        RAISES (ConfigError): E001 for a value that cannot be, E002 for an unknown setting.
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(settings) - set(known))
        if unknown:
            raise ConfigError(Errors.E002.format(names=unknown, known=known))
        return cls(**settings)


def _require(config: BiLMConfig, name: str, condition: bool, expected: str) -> None:
    if not condition:
        raise ConfigError(Errors.E001.format(name=name, value=getattr(config, name), expected=expected))


def _require_int(config: BiLMConfig, name: str, least: int, most: int) -> None:
    _require(config, name, _is_int(getattr(config, name), least, most), f"a whole number from {least} to {most}")


def _is_int(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_positive(value: object, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= most
