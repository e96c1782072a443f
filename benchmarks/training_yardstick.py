"""A training step as bilm-tf does it, written in plain torch: the yardstick of `training.py`.

Every token has its characters convolved, at all 50 positions; LSTM cells go step by step through windows of 20 words of
endless streams; each direction draws a sample of its own for the softmax; Adagrad.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from spacy_elmo.lm.characters import BEGIN_SENTENCE, END_SENTENCE, Word, keys_to_ids
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.pretraining.vocabulary import Vocabulary

Sentences = list[list[str]]


class CharacterCNN(nn.Module):
    """Convolutions over the characters of each token, highways, projection."""

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        self.characters = nn.Embedding(261, config.character_dim)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.character_dim, number, width) for width, number in config.filters
        )
        n_filters = config.n_filters
        self.highways = nn.ModuleList(nn.Linear(n_filters, 2 * n_filters) for _ in range(config.n_highway))
        self.projection = nn.Linear(n_filters, config.projection)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (Tensor): (tokens, 50). RETURNS (Tensor): (tokens, projection)."""
        characters = self.characters(ids).transpose(1, 2)
        features = torch.cat([convolution(characters).amax(2).relu() for convolution in self.convolutions], 1)
        for highway in self.highways:
            transformed, gate = highway(features).chunk(2, 1)
            gate = torch.sigmoid(gate - 2)
            features = gate * transformed.relu() + (1 - gate) * features
        projected: Tensor = self.projection(features)
        return projected


class Cell(nn.Module):
    """One time step of a projected LSTM with clips."""

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        self.config = config
        self.kernel = nn.Linear(2 * config.projection, 4 * config.cells)
        self.projection = nn.Linear(config.cells, config.projection, bias=False)

    def forward(self, inputs: Tensor, cell: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        i, j, f, o = self.kernel(torch.cat([inputs, hidden], 1)).chunk(4, 1)
        cell = torch.sigmoid(f + 1) * cell + torch.sigmoid(i) * torch.tanh(j)
        if self.config.cell_clip is not None:
            cell = cell.clamp(-self.config.cell_clip, self.config.cell_clip)
        hidden = self.projection(torch.sigmoid(o) * torch.tanh(cell))
        if self.config.projection_clip is not None:
            hidden = hidden.clamp(-self.config.projection_clip, self.config.projection_clip)
        return cell, hidden


class Yardstick(nn.Module):
    """The model and its step.

    config (BiLMConfig): Sizes and clips.
    vocabulary (Vocabulary): The words predicted.
    n_samples (int): Words of a sample of the softmax.
    unroll (int): Words of a window.
    dropout (float): On the input of each LSTM layer and of the softmax.
    """

    def __init__(self, config: BiLMConfig, vocabulary: Vocabulary, n_samples: int, unroll: int, dropout: float) -> None:
        super().__init__()
        self.config, self.vocabulary, self.n_samples, self.unroll = config, vocabulary, n_samples, unroll
        self.encoder = CharacterCNN(config)
        self.cells = nn.ModuleList(nn.ModuleList(Cell(config) for _ in range(config.n_layers)) for _ in range(2))
        self.weight = nn.Parameter(torch.randn(len(vocabulary), config.projection) / math.sqrt(config.projection))
        self.bias = nn.Parameter(torch.zeros(len(vocabulary)))
        self.dropout = nn.Dropout(dropout)
        self.optimizer = torch.optim.Adagrad(self.parameters(), lr=0.2, initial_accumulator_value=1.0)
        self.state: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def __call__(self, sentences: Sentences) -> float:
        streams = [self._streams(sentences, direction) for direction in range(2)]
        losses = [self._loss(*stream, direction) for direction, stream in enumerate(streams)]
        loss = (losses[0] + losses[1]) / 2
        self.optimizer.zero_grad()
        (loss * self.unroll).backward()
        nn.utils.clip_grad_norm_(self.parameters(), 10.0)
        self.optimizer.step()
        return loss.item()

    def _streams(self, sentences: Sentences, direction: int) -> tuple[Tensor, Tensor]:
        """Characters, (streams, unroll, 50), and ids of the words that come next, (streams, unroll)."""
        begin, end = (BEGIN_SENTENCE, END_SENTENCE)[:: -1 if direction else 1]
        read: list[Word] = []
        predicted: list[Word] = []
        for sentence in sentences:
            words = sentence[::-1] if direction else sentence
            read += [begin, *words]
            predicted += [*words, end]
        places = len(read) // self.unroll * self.unroll
        keys = [word if not isinstance(word, str) else word.encode()[: self.config.max_characters - 2] for word in read]
        characters = keys_to_ids(keys[:places], self.config.max_characters)
        ids = torch.tensor([self.vocabulary.id_of(word) for word in predicted[:places]])
        return characters.view(-1, self.unroll, self.config.max_characters), ids.view(-1, self.unroll)

    def _loss(self, characters: Tensor, words: Tensor, direction: int) -> Tensor:
        streams = len(words)
        layer_inputs = self.encoder(characters.flatten(0, 1)).view(streams, self.unroll, -1)
        for depth, cell in enumerate(self.cells[direction]):
            layer_inputs = self.dropout(layer_inputs)
            state, hidden = self._start(direction, depth, streams)
            outputs = []
            for step in range(self.unroll):
                state, hidden = cell(layer_inputs[:, step], state, hidden)
                outputs.append(hidden)
            self.state[direction, depth] = state.detach(), hidden.detach()
            stacked = torch.stack(outputs, 1)
            layer_inputs = stacked + layer_inputs if depth and self.config.skip_connections else stacked
        return self._sampled_softmax(self.dropout(layer_inputs).flatten(0, 1), words.flatten())

    def _start(self, direction: int, depth: int, streams: int) -> tuple[Tensor, Tensor]:
        """Where the streams ended, rows added or left out where their number is another."""
        sizes = self.config.cells, self.config.projection
        before = self.state.get((direction, depth), tuple(torch.zeros(0, size) for size in sizes))
        cell, hidden = (
            torch.cat([part[:streams], torch.zeros(max(0, streams - len(part)), part.shape[1])]) for part in before
        )
        return cell, hidden

    def _sampled_softmax(self, hidden: Tensor, words: Tensor) -> Tensor:
        samples, tries = self._draw()
        weight, bias = self.weight[samples], self.bias[samples]
        others = hidden @ weight.T + bias - self._log_expected(samples, tries)
        others = others.masked_fill(words[:, None] == samples, -1e9)
        truth = (hidden * self.weight[words]).sum(1) + self.bias[words] - self._log_expected(words, tries)
        logits = torch.cat([truth[:, None], others], 1)
        return nn.functional.cross_entropy(logits, torch.zeros_like(words))

    def _draw(self) -> tuple[Tensor, int]:
        """Distinct words, log-uniformly, and the tries that took."""
        n_words = len(self.vocabulary)
        number = min(self.n_samples, n_words // 2)
        drawn = torch.expm1(torch.rand(8 * number, dtype=torch.float64) * math.log1p(n_words)).long()
        met: dict[int, None] = {}
        tries = 0
        for tries, word in enumerate(drawn.tolist(), 1):
            met[word] = None
            if len(met) == number:
                break
        return torch.tensor(list(met)), tries

    def _log_expected(self, words: Tensor, tries: int) -> Tensor:
        probability = torch.log1p(1 / (words.float() + 1)) / math.log1p(len(self.vocabulary))
        return torch.log(-torch.expm1(tries * torch.log1p(-probability)))
