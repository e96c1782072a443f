"""Every number that fixes a biLM, validated."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from ..errors import ConfigError, Errors

Activation = Literal["relu", "tanh"]
InitialState = Literal["zero", "canonical", "carry"]

N_CHARACTERS = 261
"""Rows of the character table: 256 byte values, begin/end of sentence, begin/end of word, padding."""


@dataclass(frozen=True)
class BiLMConfig:
    """The shape and the numerics of a biLM (Peters et al. 2018, section 3; defaults are the published full size).

    character_dim (int): Width of a character embedding.
    filters (tuple): Character convolutions as (width in characters, number of filters).
    max_characters (int): Positions of a word: begin, at most `max_characters - 2` bytes, end, padding.
    activation (str): "relu" or "tanh", after the max over positions.
    n_highway (int): Highway layers over the convolutions; 0 for none.
    projection (int): Width of a word vector and of each direction of each layer.
    cells (int): LSTM cells of each direction of each layer. Equal to `projection` means that the LSTM has no projection.
    n_layers (int): LSTM layers of each direction.
    skip_connections (bool): Add a layer's input to its output, from the second layer on.
    cell_clip (float | None): Bound of the LSTM cell, None for no bound.
    projection_clip (float | None): Bound of the projected state, None for no bound.
    initial_state (str): Where every sentence starts. "zero": from zeros. "canonical": from the state that one fixed
        sentence leaves. "carry": from the state that the caller hands in, as bilm-tf and AllenNLP do.

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

    def __post_init__(self) -> None:
        for name in ("character_dim", "projection", "cells", "n_layers"):
            _require(self, name, _is_int(getattr(self, name), at_least=1), "a whole number from 1 up")
        _require(self, "n_highway", _is_int(self.n_highway, at_least=0), "a whole number from 0 up")
        _require(self, "max_characters", _is_int(self.max_characters, at_least=3), "a whole number from 3 up")
        _require(self, "activation", self.activation in get_args(Activation), "one of " + str(get_args(Activation)))
        states = get_args(InitialState)
        _require(self, "initial_state", self.initial_state in states, f"one of {states}")
        _require(self, "skip_connections", isinstance(self.skip_connections, bool), "true or false")
        for name in ("cell_clip", "projection_clip"):
            clip = getattr(self, name)
            _require(self, name, clip is None or _is_positive(clip), "a number above 0, or None for no clipping")
        self._validate_filters()

    def _validate_filters(self) -> None:
        expected = f"pairs (width from 1 to max_characters={self.max_characters}, number of filters from 1 up)"
        try:
            filters = tuple((width, number) for width, number in self.filters)
        except (TypeError, ValueError):
            filters = ()
        fits = all(
            _is_int(width, 1) and width <= self.max_characters and _is_int(number, 1) for width, number in filters
        )
        _require(self, "filters", bool(filters) and fits, expected)
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
        return self.n_filters != self.projection

    @property
    def has_lstm_projection(self) -> bool:
        """Whether the LSTM projects its output; with as many cells as projections it does not."""
        return self.cells != self.projection

    def to_dict(self) -> dict[str, Any]:
        """RETURNS (dict): The settings in JSON's types."""
        return {**asdict(self), "filters": [list(pair) for pair in self.filters]}

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


def _is_int(value: object, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")
