"""A small random model in the files of ELMoForManyLangs, and a reading of such files in plain numpy, one sentence, one step,
one word at a time. Both share nothing with spacy_elmo: they follow the original program."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.floating]

NAME = "cnn_small.json"
ARCHITECTURE: dict[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 5, "cell_clip": 3, "proj_clip": 3, "dim": 7, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 4], [2, 3], [3, 2]],
        "n_highway": 2,
        "word_dim": 4,
        "char_dim": 3,
        "max_characters_per_token": 10,
    },
    "classifier": {"name": "sampled_softmax", "n_samples": 8},
    "dropout": 0.1,
}
WORDS = ["<oov>", "<bos>", "<eos>", "<pad>", "the", "cat", ".", "日本", "naïve", "abcdefgh", "\u3000", "a b"]
CHARACTERS = [
    "t",
    "h",
    "e",
    "c",
    "a",
    ".",
    "日",
    "本",
    "<bos>",
    "ï",
    "<eos>",
    "<oov>",
    "<pad>",
    "<bow>",
    "<eow>",
    "\u3000",
]
SENTENCES = [
    ["the", "cat", "."],
    ["unseen"],
    ["日本", "naïve", "\u3000", "a b", "abcdefgh", "abcdefghijk", "\U0001f600" * 12, "ï" * 9, "", "the", "cat"],
]


def changed(section: str, **settings: Any) -> dict[str, Any]:
    """The architecture with other settings in a section."""
    architecture = copy.deepcopy(ARCHITECTURE)
    architecture[section].update(settings)
    return architecture


def random_tensors(architecture: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The tensors of token_embedder.pkl and encoder.pkl. Biases and padding are not zero, clips bind now and then."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int, scale: float | None = None) -> torch.Tensor:
        scale = 1 / shape[-1] ** 0.5 if scale is None else scale
        return torch.randn(*shape, generator=generator) * scale

    tokens, lstms = architecture["token_embedder"], architecture["encoder"]
    filters = sum(number for _, number in tokens["filters"])
    width, cells = lstms["projection_dim"], lstms["dim"]
    token_tensors = {
        "word_emb_layer.embedding.weight": draw(len(WORDS), tokens["word_dim"], scale=1),
        "char_emb_layer.embedding.weight": draw(len(CHARACTERS), tokens["char_dim"], scale=1),
    }
    for i, (positions, number) in enumerate(tokens["filters"]):
        token_tensors[f"convolutions.{i}.weight"] = draw(number, tokens["char_dim"], positions)
        token_tensors[f"convolutions.{i}.bias"] = draw(number, scale=0.5)
    for k in range(tokens["n_highway"]):
        token_tensors[f"highways._layers.{k}.weight"] = draw(2 * filters, filters)
        token_tensors[f"highways._layers.{k}.bias"] = draw(2 * filters, scale=0.5)
    token_tensors["projection.weight"] = draw(width, tokens["word_dim"] + filters)
    token_tensors["projection.bias"] = draw(width, scale=0.5)
    lstm_tensors = {}
    for direction in ("forward", "backward"):
        for layer in range(lstms["n_layers"]):
            name = f"{direction}_layer_{layer}"
            lstm_tensors[f"{name}.input_linearity.weight"] = draw(4 * cells, width)
            lstm_tensors[f"{name}.state_linearity.weight"] = draw(4 * cells, width)
            lstm_tensors[f"{name}.state_linearity.bias"] = draw(4 * cells, scale=0.5)
            lstm_tensors[f"{name}.state_projection.weight"] = draw(width, cells)
    return token_tensors, lstm_tensors


def write_dictionary(path: Path, entries: Sequence[str]) -> None:
    """In another order than that of the rows, which the numbers say."""
    lines = [f"{entry}\t{row}\n" for row, entry in enumerate(entries)]
    path.write_text("".join(reversed(lines)), encoding="utf-8", newline="\n")


def write_model(directory: Path, architecture: dict[str, Any] = ARCHITECTURE, zipped: bool = False) -> Path:
    """Write a model; `zipped` in the form that torch.save has since 1.6, which is younger than the published models."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"seed": 1, "gpu": 0, "config_path": f"/home/author/configs/{NAME}", "max_epoch": 10, "lr": 0.001}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / NAME).write_text(json.dumps(architecture))
    write_dictionary(directory / "word.dic", WORDS)
    write_dictionary(directory / "char.dic", CHARACTERS)
    files = zip(("token_embedder.pkl", "encoder.pkl"), random_tensors(architecture))
    for name, tensors in files:
        torch.save(tensors, directory / name, _use_new_zipfile_serialization=zipped)
    return directory


# The reading.


def sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


class ManyLangsReading:
    """Layers of sentences, each from zeros, from the files of a model.

    directory (Path): The model.
    """

    def __init__(self, directory: Path) -> None:
        self.architecture = json.loads((directory / NAME).read_text())
        self.words = self._dictionary(directory / "word.dic")
        self.characters = self._dictionary(directory / "char.dic")
        self.tensors: dict[str, Array] = {}
        for name in ("token_embedder.pkl", "encoder.pkl"):
            tensors = torch.load(directory / name, weights_only=True)
            self.tensors.update({key: tensor.detach().double().numpy() for key, tensor in tensors.items()})

    @staticmethod
    def _dictionary(path: Path) -> dict[str, int]:
        rows = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            fields = line.strip().split("\t")
            rows["\u3000" if len(fields) == 1 else fields[0]] = int(fields[-1])
        return rows

    def embed(self, sentence: Sequence[str]) -> Array:
        """(words, layers + 1, 2 · projection) of a sentence."""
        size = self.architecture["token_embedder"]["max_characters_per_token"]
        framed = ["<bos>", *(word[: size - 2] for word in sentence), "<eos>"]
        words = [self.word_vector(word) for word in framed]
        layers = [np.concatenate([words, words], axis=1)]
        forward, backward = words, words
        for layer in range(self.architecture["encoder"]["n_layers"]):
            outputs = self._lstm(f"forward_layer_{layer}", forward)
            outputs_back = self._lstm(f"backward_layer_{layer}", backward[::-1])[::-1]
            if layer > 0:
                outputs = [output + x for output, x in zip(outputs, forward, strict=True)]
                outputs_back = [output + x for output, x in zip(outputs_back, backward, strict=True)]
            forward, backward = outputs, outputs_back
            layers.append(np.concatenate([forward, backward], axis=1))
        return np.array(layers).transpose(1, 0, 2)[1:-1]

    def word_vector(self, word: str) -> Array:
        settings = self.architecture["token_embedder"]
        row = self.words.get(word, self.words["<oov>"])
        letters = [word] if word in ("<bos>", "<eos>") else list(word)
        # The ids of begin and end of word are swapped in the original.
        rows = [self.characters.get(letter, self.characters["<oov>"]) for letter in ["<eow>", *letters, "<bow>"]]
        rows += [self.characters["<pad>"]] * (settings["max_characters_per_token"] - len(rows))
        characters = self.tensors["char_emb_layer.embedding.weight"][rows].T
        features = []
        for i, (width, number) in enumerate(settings["filters"]):
            weight, bias = self.tensors[f"convolutions.{i}.weight"], self.tensors[f"convolutions.{i}.bias"]
            for kernel, offset in zip(weight, bias):
                values = [
                    (characters[:, start : start + width] * kernel).sum() + offset
                    for start in range(characters.shape[1] - width + 1)
                ]
                features.append(np.tanh(max(values)) if settings["activation"] == "tanh" else max(max(values), 0.0))
        x = np.array(features)
        for k in range(settings["n_highway"]):
            projected = self.tensors[f"highways._layers.{k}.weight"] @ x + self.tensors[f"highways._layers.{k}.bias"]
            nonlinear, gate = np.split(projected, 2)
            gate = sigmoid(gate)
            x = gate * x + (1 - gate) * np.maximum(nonlinear, 0)
        both = np.concatenate([self.tensors["word_emb_layer.embedding.weight"][row], x])
        return self.tensors["projection.weight"] @ both + self.tensors["projection.bias"]

    def _lstm(self, name: str, inputs: Sequence[Array]) -> list[Array]:
        settings = self.architecture["encoder"]
        cell, hidden = np.zeros(settings["dim"]), np.zeros(settings["projection_dim"])
        outputs = []
        for x in inputs:
            gates = (
                self.tensors[f"{name}.input_linearity.weight"] @ x
                + self.tensors[f"{name}.state_linearity.weight"] @ hidden
                + self.tensors[f"{name}.state_linearity.bias"]
            )
            input_gate, forget_gate, candidate, output_gate = np.split(gates, 4)
            cell = sigmoid(input_gate) * np.tanh(candidate) + sigmoid(forget_gate) * cell
            if settings["cell_clip"]:
                cell = np.clip(cell, -settings["cell_clip"], settings["cell_clip"])
            hidden = self.tensors[f"{name}.state_projection.weight"] @ (sigmoid(output_gate) * np.tanh(cell))
            if settings["proj_clip"]:
                hidden = np.clip(hidden, -settings["proj_clip"], settings["proj_clip"])
            outputs.append(hidden)
        return outputs
