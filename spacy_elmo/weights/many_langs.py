"""Read the directories of ELMoForManyLangs (Che et al. 2018, "Towards better UD parsing"): biLMs over a table of words and
a convolution over characters, of 44 languages.

config.json             how the model was trained; names the architecture by a path of the machine it was trained on
<architecture>.json     the shape; where it is missing, the one architecture that came with ELMoForManyLangs
word.dic, char.dic      words and characters with the rows of their tables
token_embedder.pkl      tables, convolutions, highways, projection
encoder.pkl             the LSTMs, gates in the order input, forget, candidate, output; the forget bias holds 1 already
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError, ElmoWarning, Errors, Warnings, WeightsError, detail_of, one_line, shown
from ..lm.bilm import BiLM
from ..lm.config import BiLMConfig, InitialState
from ..lm.lstm import FORGET_BIAS
from .files import names_in, read_json
from .modules import give_memory, is_finite, shapes_only
from .state_dicts import read_state_dict

CONFIG_FILE = "config.json"
WORDS_FILE, CHARACTERS_FILE = "word.dic", "char.dic"
TOKENS_FILE, LSTMS_FILE = "token_embedder.pkl", "encoder.pkl"

# The architecture of all published models, under the two names that it came with.
_KNOWN_NAMES = ("cnn_50_100_512_4096_sample.json", "cnn_0_100_512_4096_sample.json")
_KNOWN_ARCHITECTURE = {
    "encoder": {"name": "elmo", "projection_dim": 512, "cell_clip": 3, "proj_clip": 3, "dim": 4096, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "n_highway": 2,
        "word_dim": 100,
        "char_dim": 50,
        "max_characters_per_token": 50,
    },
}

_WORDS, _CHARACTERS = "word_emb_layer.embedding.weight", "char_emb_layer.embedding.weight"
_MOST_DICTIONARY_BYTES = 2**27


def load_many_langs(
    directory: str | Path, initial_state: InitialState = "canonical", notes: list[str] | None = None
) -> BiLM:
    """Read a biLM of ELMoForManyLangs.

    Warns (W150) where the architecture is not in the directory and the known one is taken.

    directory (str | Path): The model's directory.
    initial_state (str): Where every sentence starts, see BiLMConfig. "canonical" comes closest to the original, which
        carries its state from batch to batch, with output that depends on nothing but the sentence.
    notes (list[str] | None): A sentence on what was assumed is appended.
    RETURNS (BiLM): float32 parameters that require no gradient.
    RAISES (WeightsError): E150 if a file is missing or too large to be what it should; E151–E153 for an architecture that
        cannot be read; E154, E155 for dictionaries and E156–E159 for weights that are damaged, unsafe or do not fit.
    RAISES (ConfigError): E001 if `initial_state` is unknown.
    """
    directory = Path(directory)
    BiLMConfig(initial_state=initial_state)
    architecture, path = _read_architecture(directory, [] if notes is None else notes)
    tensors = read_state_dict(_existing(directory, TOKENS_FILE))
    n_rows = {name: tensors[name].shape[0] for name in (_WORDS, _CHARACTERS) if name in tensors and tensors[name].dim()}
    config = _to_config(path, architecture, n_rows.get(_WORDS, 1), n_rows.get(_CHARACTERS, 1), initial_state)
    tensors.update(read_state_dict(_existing(directory, LSTMS_FILE)))
    _require_fit(directory, config, tensors)
    vocabularies = {
        "words": _read_dictionary(_existing(directory, WORDS_FILE, _MOST_DICTIONARY_BYTES)),
        "characters": _read_dictionary(_existing(directory, CHARACTERS_FILE, _MOST_DICTIONARY_BYTES)),
    }
    with torch.inference_mode(False):
        try:
            with shapes_only():
                bilm = BiLM(config, vocabularies)
        except ConfigError as error:
            raise WeightsError(Errors.E155.format(path=directory, problem=error)) from error
        give_memory(bilm)
        bilm = bilm.requires_grad_(False).eval()
        for name, values in _parameters(config, tensors):
            bilm.get_parameter(name).copy_(values)
    return bilm


def _read_architecture(directory: Path, notes: list[str]) -> tuple[dict[str, Any], Path]:
    """The architecture and where it is from. What config.json names is never sought outside of the directory."""
    path = _existing(directory, CONFIG_FILE)
    named = _read_json(path).get("config_path")
    if not isinstance(named, str):
        raise WeightsError(Errors.E151.format(path=path, problem="it has no string 'config_path'"))
    name = PureWindowsPath(named).name  # splits at either slash
    if os.path.isfile(directory / name):
        beside = _existing(directory, name)
        return _read_json(beside), beside
    if name not in _KNOWN_NAMES:
        raise WeightsError(Errors.E152.format(path=path, name=one_line(name)))
    notes.append(f"The architecture '{name}' is not beside the weights: that of the published models was assumed.")
    warnings.warn(Warnings.W150.format(path=path, name=name), ElmoWarning, stacklevel=3)
    return _KNOWN_ARCHITECTURE, path


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(Errors.E151.format(path=path, problem=detail_of(error))) from error
    if not isinstance(found, dict):
        raise WeightsError(Errors.E151.format(path=path, problem="it is no JSON object"))
    return found


def _to_config(
    path: Path, architecture: dict[str, Any], n_words: int, n_characters: int, initial_state: InitialState
) -> BiLMConfig:
    lstms, tokens = architecture.get("encoder"), architecture.get("token_embedder")
    if not isinstance(lstms, dict) or not isinstance(tokens, dict):
        raise WeightsError(Errors.E151.format(path=path, problem="it has no objects 'encoder' and 'token_embedder'"))
    kinds = {"encoder.name": (lstms.get("name"), "elmo"), "token_embedder.name": (tokens.get("name"), "cnn")}
    for name, (found, expected) in kinds.items():
        if str(found).lower() != expected:
            raise WeightsError(Errors.E153.format(path=path, problem=f"'{name}' is {shown(found)}, not {expected!r}"))
    try:
        config = BiLMConfig(
            character_dim=tokens.get("char_dim"),  # type: ignore[arg-type]
            filters=tokens.get("filters"),  # type: ignore[arg-type]
            max_characters=tokens.get("max_characters_per_token"),  # type: ignore[arg-type]
            activation=tokens.get("activation"),  # type: ignore[arg-type]
            n_highway=tokens.get("n_highway"),  # type: ignore[arg-type]
            projection=lstms.get("projection_dim"),  # type: ignore[arg-type]
            cells=lstms.get("dim"),  # type: ignore[arg-type]
            n_layers=lstms.get("n_layers"),  # type: ignore[arg-type]
            cell_clip=lstms.get("cell_clip") or None,  # 0 is no bound
            projection_clip=lstms.get("proj_clip") or None,
            initial_state=initial_state,
            token_encoder="words_and_characters",
            n_words=n_words,
            word_dim=tokens.get("word_dim"),  # type: ignore[arg-type]
            n_characters=n_characters,
        )
    except ConfigError as error:
        raise WeightsError(Errors.E153.format(path=path, problem=detail_of(error))) from error
    if not config.has_lstm_projection:
        raise WeightsError(Errors.E153.format(path=path, problem="its LSTMs have as many cells as outputs"))
    return config


def _read_dictionary(path: Path) -> list[str]:
    """Entries in the order of their rows. A line holds an entry, a tab and the row; an entry that is white space is lost on
    reading, in the original as well, which then takes it for an ideographic space."""
    try:
        lines = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise WeightsError(Errors.E154.format(path=path, line=1, problem=detail_of(error))) from error
    entries: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        *entry, row = line.strip().split("\t")
        name = entry[0] if entry else "\u3000"
        if len(entry) > 1 or not (row.isascii() and row.isdigit() and len(row) < 10):
            raise WeightsError(Errors.E154.format(path=path, line=number, problem="it is no entry, tab and number"))
        if name in entries:
            raise WeightsError(Errors.E154.format(path=path, line=number, problem=f"{name[:40]!r} was there before"))
        entries[name] = int(row)
    if sorted(entries.values()) != list(range(len(entries))):
        problem = f"it does not number its {len(entries)} entries from 0 to {len(entries) - 1}, each once"
        raise WeightsError(Errors.E155.format(path=path, problem=problem))
    return sorted(entries, key=entries.__getitem__)


def _shapes(config: BiLMConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor of the files, one after another, so that absurd numbers fail at the first."""
    width, cells, filters = config.projection, config.cells, config.n_filters
    yield _WORDS, (config.n_words, config.word_dim)
    yield _CHARACTERS, (config.n_characters, config.character_dim)
    for i, (positions, number) in enumerate(config.filters):
        yield f"convolutions.{i}.weight", (number, config.character_dim, positions)
        yield f"convolutions.{i}.bias", (number,)
    for k in range(config.n_highway):
        yield f"highways._layers.{k}.weight", (2 * filters, filters)
        yield f"highways._layers.{k}.bias", (2 * filters,)
    yield "projection.weight", (width, config.word_dim + filters)
    yield "projection.bias", (width,)
    for direction in ("forward", "backward"):
        for layer in range(config.n_layers):
            name = f"{direction}_layer_{layer}"
            yield f"{name}.input_linearity.weight", (4 * cells, width)
            yield f"{name}.state_linearity.weight", (4 * cells, width)
            yield f"{name}.state_linearity.bias", (4 * cells,)
            yield f"{name}.state_projection.weight", (width, cells)


def _require_fit(directory: Path, config: BiLMConfig, tensors: dict[str, Tensor]) -> None:
    described = set()
    for name, shape in _shapes(config):
        found = tuple(tensors[name].shape) if name in tensors else "nothing"
        if found != shape:
            raise WeightsError(Errors.E157.format(path=directory, name=name, found=found, expected=shape))
        described.add(name)
    if surplus := sorted(tensors.keys() - described):
        raise WeightsError(Errors.E158.format(path=directory, names=shown(surplus)))
    for name, tensor in tensors.items():
        if not is_finite(tensor.float()):
            raise WeightsError(Errors.E159.format(path=directory, name=name))


def _parameters(config: BiLMConfig, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """BiLM's parameters, made from the files' tensors, which have the shape (out, in) where BiLM has (in, out).

    What was used is taken out of `tensors`, so that the weights are not in memory twice.
    """
    yield "encoder.words", tensors.pop(_WORDS)
    yield "encoder.characters", tensors.pop(_CHARACTERS)
    for i in range(len(config.filters)):
        yield f"encoder.convolutions.{i}.weight", tensors.pop(f"convolutions.{i}.weight").permute(2, 1, 0).flatten(0, 1)
        yield f"encoder.convolutions.{i}.bias", tensors.pop(f"convolutions.{i}.bias")
    for k in range(config.n_highway):
        for part in ("weight", "bias"):
            transform, keep = tensors.pop(f"highways._layers.{k}.{part}").chunk(2)
            yield f"encoder.highways.{k}.transform_{part}", transform.t()
            # There the gate lets the input through, here the transformed value: σ(−x) = 1 − σ(x).
            yield f"encoder.highways.{k}.gate_{part}", -keep.t()
    yield "encoder.projection.weight", tensors.pop("projection.weight").t()
    yield "encoder.projection.bias", tensors.pop("projection.bias")
    for direction in ("forward", "backward"):
        for layer in range(config.n_layers):
            ours, theirs = f"{direction}_lm.{layer}", f"{direction}_layer_{layer}"
            yield f"{ours}.input_weight", _in_our_order(tensors.pop(f"{theirs}.input_linearity.weight")).t()
            yield f"{ours}.recurrent_weight", _in_our_order(tensors.pop(f"{theirs}.state_linearity.weight")).t()
            bias = _in_our_order(tensors.pop(f"{theirs}.state_linearity.bias").float())
            bias[config.cells : 2 * config.cells] -= FORGET_BIAS
            yield f"{ours}.bias", bias
            yield f"{ours}.projection_weight", tensors.pop(f"{theirs}.state_projection.weight").t()


def _in_our_order(gates: Tensor) -> Tensor:
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4)
    return torch.cat([input_gate, forget_gate, output_gate, candidate])


def _existing(directory: Path, name: str, most_bytes: int | None = None) -> Path:
    path = directory / name
    if not path.is_file():
        raise WeightsError(Errors.E150.format(path=directory, name=name, problem=f"there: {names_in(directory)}"))
    if most_bytes is not None and path.stat().st_size > most_bytes:
        raise WeightsError(
            Errors.E150.format(path=directory, name=name, problem=f"it has more than {most_bytes:,} bytes")
        )
    return path
