"""From the characters of a word to one vector: convolutions, highways, projection.

Kim et al. 2016 ("Character-aware neural language models"), as set up by Józefowicz et al. 2016 and Peters et al. 2018.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .characters import PADDING_ID, BoundaryWord, Word, keys_to_ids
from .config import N_CHARACTERS, BiLMConfig
from .devices import to_device
from .precision import rounded_rows

# Characters that one run of the convolutions takes: bounds the memory, whatever the number of words.
_CHARACTERS_PER_RUN = 16_384


class Linear(nn.Module):
    """x · weight + bias, the weight laid out (in, out) as the matrix product reads it."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_in, n_out) / math.sqrt(n_in))
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.addmm(self.bias, inputs, self.weight)


class Highway(nn.Module):
    """g ⊙ relu(x·W + b) + (1 − g) ⊙ x, with the gate g = σ(x·W_g + b_g) (Srivastava et al. 2015, eq. 3).

    The gate starts mostly closed (bias −2). bilm-tf calls it "carry", though 1 means transformed.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        scale = 1 / math.sqrt(width)
        self.transform_weight = nn.Parameter(torch.randn(width, width) * scale)
        self.transform_bias = nn.Parameter(torch.zeros(width))
        self.gate_weight = nn.Parameter(torch.randn(width, width) * scale)
        self.gate_bias = nn.Parameter(torch.full((width,), -2.0))

    def forward(self, inputs: Tensor) -> Tensor:
        transformed = torch.addmm(self.transform_bias, inputs, self.transform_weight).relu()
        gate = torch.addmm(self.gate_bias, inputs, self.gate_weight).sigmoid()
        return inputs + gate * (transformed - inputs)


class CharacterConvolution(nn.Module):
    """Filters of one width over the characters of a word, the maximum over positions, then the activation."""

    def __init__(self, width: int, n_filters: int, character_dim: int, activation: str) -> None:
        super().__init__()
        self.width = width
        self.activation = torch.relu if activation == "relu" else torch.tanh
        n_in = width * character_dim
        weight = torch.empty(n_in, n_filters)
        if activation == "relu":
            weight.uniform_(-0.05, 0.05)
        else:
            weight.normal_(0, 1 / math.sqrt(n_in))
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(n_filters))

    def forward(self, characters: Tensor) -> Tensor:
        """characters (Tensor): (words, positions, character_dim). RETURNS (Tensor): (words, filters)."""
        words, positions, dim = characters.shape
        windows = characters.reshape(words, positions * dim).unfold(1, self.width * dim, dim)
        products = windows.reshape(-1, self.width * dim) @ self.weight
        # The bias and the monotone activation commute with the maximum: apply them to one value a filter.
        largest = products.view(words, windows.shape[1], self.weight.shape[1]).amax(1)
        return self.activation(largest + self.bias)


class CharacterFeatures(nn.Module):
    """From the characters of a word to the filters of all widths, through the highways.

    config (BiLMConfig): Shape and numerics.
    n_characters (int): Rows of the table of characters.
    padding_id (int): The row that fills a word's positions beyond its end, and stands nowhere else.
    """

    def __init__(self, config: BiLMConfig, n_characters: int, padding_id: int) -> None:
        super().__init__()
        self.widest = max(width for width, _ in config.filters)
        self.padding_id = padding_id
        self.characters = nn.Parameter(torch.empty(n_characters, config.character_dim).uniform_(-1, 1))
        self.convolutions = nn.ModuleList(
            CharacterConvolution(width, number, config.character_dim, config.activation)
            for width, number in config.filters
        )
        self.highways = nn.ModuleList(Highway(config.n_filters) for _ in range(config.n_highway))

    def forward(self, ids: Tensor) -> Tensor:
        """Encode words.

        ids (Tensor): int64, (words, max_characters); best on the CPU, where they are sorted without waiting for a GPU.
        RETURNS (Tensor): (words, filters), or (words, projection) where there is one.
        """
        lengths = (ids != self.padding_id).sum(1)
        order = torch.argsort(lengths, stable=True)
        sorted_lengths, device = lengths[order].tolist(), self.characters.device
        ids, order_back = to_device(ids[order], device), to_device(torch.argsort(order), device)
        runs = [
            self._encode_run(ids[start:end, :positions]) for start, end, positions in self._runs(sorted_lengths, ids)
        ]
        encoded = torch.cat(runs) if runs else self._encode(ids)
        return encoded[order_back]

    def _runs(self, lengths: list[int], ids: Tensor) -> list[tuple[int, int, int]]:
        """Cut words, shortest first, into runs (start, end, positions) of bounded size.

        A window that holds padding only gives the same value wherever it stands, so beyond the longest word one such
        window for the widest filter is enough: the maximum is that over all positions, exactly.
        """
        runs, start = [], 0
        while start < len(lengths):
            end = start + 1
            while end < len(lengths) and (end + 1 - start) * (lengths[end] + self.widest) <= _CHARACTERS_PER_RUN:
                end += 1
            positions = rounded_rows(lengths[end - 1] + self.widest, self.characters, 4)
            runs.append((start, end, min(ids.shape[1], positions)))
            start = end
        return runs

    def _encode_run(self, ids: Tensor) -> Tensor:
        words = len(ids)
        more = rounded_rows(words, self.characters) - words
        return self._encode(nn.functional.pad(ids, (0, 0, 0, more), value=self.padding_id))[:words]

    def _encode(self, ids: Tensor) -> Tensor:
        characters = self.characters[ids]
        encoded = torch.cat([convolution(characters) for convolution in self.convolutions], 1)
        for highway in self.highways:
            encoded = highway(encoded)
        return encoded


class CharacterEncoder(CharacterFeatures):
    """The token layer of a biLM over characters: one vector for each word type, whatever its context.

    config (BiLMConfig): Shape and numerics.
    """

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__(config, N_CHARACTERS, PADDING_ID)
        self.max_characters = config.max_characters
        self.max_bytes = config.max_characters - 2
        self.projection = Linear(config.n_filters, config.projection) if config.has_character_projection else None

    @property
    def vocabularies(self) -> Mapping[str, Sequence[str]]:
        """None: any string has bytes."""
        return {}

    def key(self, word: Word) -> bytes | BoundaryWord:
        """What the encoder sees of a word: words with one key have one vector.

        word (str | BoundaryWord): The word. Lone surrogates, which UTF-8 cannot hold, are dropped.
        RETURNS (bytes | BoundaryWord): At most `max_characters - 2` bytes: two positions are taken by the marks of begin
            and end. A cut may fall inside a code point, as in the published models.
        """
        if isinstance(word, BoundaryWord):
            return word
        return word.encode("utf-8", "ignore")[: self.max_bytes]

    def encode(self, keys: Sequence[Any]) -> Tensor:
        """Encode words.

        keys (Sequence[bytes | BoundaryWord]): From `key`.
        RETURNS (Tensor): (words, projection).
        """
        encoded: Tensor = self(keys_to_ids(keys, self.max_characters))
        return encoded

    def _encode(self, ids: Tensor) -> Tensor:
        encoded = super()._encode(ids)
        encoded = encoded if self.projection is None else self.projection(encoded)
        return encoded.to(self.characters.dtype)
