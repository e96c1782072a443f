"""The tensors of bilm-tf's models: their names and shapes, and how they become a BiLM and an output head, and back.

They keep TensorFlow's order (in, out), as BiLM does. Only the order of the gates differs: input, candidate, forget,
output there; input, forget, output, candidate in BiLM.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import Errors, WeightsError, shown
from ..lm.bilm import BiLM
from ..lm.config import N_CHARACTERS, BiLMConfig
from ..lm.softmax import FullSoftmax
from .modules import give_memory, is_finite, shapes_only

SOFTMAX_WEIGHT, SOFTMAX_BIAS = "softmax/W", "softmax/b"
TABLE_OF_WORDS = "embedding"

# The groups that options.json describes in full; others (such as a softmax) are not the biLM's.
_DESCRIBED = ("char_embed", "CNN", "RNN_")

_GATES_IN_FILE = "ijfo"
_GATES = "ifoj"

# Compression saves some 7 % of trained weights; what claims to be this much larger than its file is no model.
_MOST_COMPRESSION = 16


class StoredTensor(Protocol):
    """A tensor of floats in a file; h5py's datasets are such."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def read_direct(self, dest: NDArray[Any], source_sel: Any = None, dest_sel: Any = None) -> None:
        """Read a selection straight into memory that is there already."""


class TensorFile(Protocol):
    """Tensors by the names that bilm-tf's dump gives them.

    path (Path): Where they are, for messages. size (int): Bytes of all its files.
    """

    path: Path
    size: int

    def names(self) -> list[str]:
        """All names."""

    def find(self, name: str) -> StoredTensor | None:
        """The tensor of that name, None if there is none; E130 if it is not safe to read."""


class _Part(NamedTuple):
    """Rows `rows` of tensor `tensor`, which has `shape` in full, are BiLM's parameter `parameter`."""

    parameter: str
    tensor: str
    shape: tuple[int, ...]
    rows: slice = slice(None)
    has_gates: bool = False


def read_bilm(file: TensorFile, config: BiLMConfig, vocabularies: Mapping[str, Sequence[str]]) -> BiLM:
    """Fill a biLM with the tensors of a file.

    file (TensorFile): The tensors.
    config (BiLMConfig): What they must be.
    vocabularies (Mapping): What the token encoder looks up, as BiLM takes it.
    RETURNS (BiLM): float32 parameters that require no gradient.
    RAISES (WeightsError): E124 if they are of one direction only; E128–E133 for tensors that are missing, unsafe, or do
        not fit the config, E142 for a table of words that does not fit the vocabulary.
    """
    names = file.names()
    if any(name.lower().startswith("rnn/") for name in names):
        raise WeightsError(Errors.E124.format(path=file.path, found="not given, and the weights have no 'RNN_0'"))
    shapes = {part.tensor: part.shape for part in _parts(config)}
    _refuse_inflated(file, shapes)
    _require_rows(file, config)
    tensors = {name: _fitting(file, name, shape) for name, shape in shapes.items()}
    _refuse_undescribed(file, names, shapes)
    with torch.inference_mode(False):
        bilm = _uninitialised(config, vocabularies)
        parameters = dict(bilm.named_parameters())
        for part in _parts(config):
            values = parameters[part.parameter].detach().numpy()
            _copy(part, tensors[part.tensor], values)
            _require_finite(file, part.tensor, values)
    return bilm


def read_head(file: TensorFile, projection: int, weight: str = SOFTMAX_WEIGHT) -> FullSoftmax | None:
    """Fill an output head with the tensors of a file.

    file (TensorFile): The tensors.
    projection (int): Width of a hidden state.
    weight (str): The tensor that is its weight: that of the table of words, if the model was trained so.
    RETURNS (FullSoftmax | None): In float32. None if the file has no head.
    RAISES (WeightsError): E128–E133 as in `read_bilm`.
    """
    bias = file.find(SOFTMAX_BIAS)
    if bias is None and file.find(SOFTMAX_WEIGHT) is None:
        return None
    n_words = max(1, bias.shape[0]) if bias is not None and len(bias.shape) == 1 else 1
    shapes = {SOFTMAX_BIAS: (n_words,), weight: (n_words, projection)}
    _refuse_inflated(file, shapes)
    tensors = [_fitting(file, name, shape) for name, shape in shapes.items()]
    with torch.inference_mode(False):
        with shapes_only():
            head = FullSoftmax(projection, n_words)
        give_memory(head)
        for name, tensor, parameter in zip(shapes, tensors, (head.output.bias, head.output.weight)):
            values = parameter.detach().numpy()
            tensor.read_direct(values)
            _require_finite(file, name, values)
    return head


def tensors_of(bilm: BiLM) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The tensors of a biLM, one at a time, so that no second copy of all of them is held.

    bilm (BiLM): The biLM.
    YIELDS (tuple[str, NDArray]): Name and values, float32.
    """
    parameters = dict(bilm.named_parameters())
    parts: dict[str, list[_Part]] = {}
    for part in _parts(bilm.config):
        parts.setdefault(part.tensor, []).append(part)
    for name, of_tensor in parts.items():
        tensor = np.empty(of_tensor[0].shape, np.float32)
        for part in of_tensor:
            values = parameters[part.parameter].detach().to("cpu", torch.float32).numpy()
            _copy_back(part, values, tensor)
        yield name, tensor


def _parts(config: BiLMConfig) -> Iterator[_Part]:
    """Everything that a file must hold."""
    yield from _encoder_parts(config)
    yield from _lstm_parts(config)


def _encoder_parts(config: BiLMConfig) -> Iterator[_Part]:
    if config.token_encoder == "words":
        yield _Part("encoder.words", TABLE_OF_WORDS, (config.n_words, config.projection))
        return
    yield _Part("encoder.characters", "char_embed", (N_CHARACTERS, config.character_dim))
    for i, (width, number) in enumerate(config.filters):
        name = f"encoder.convolutions.{i}"
        yield _Part(f"{name}.weight", f"CNN/W_cnn_{i}", (1, width, config.character_dim, number))
        yield _Part(f"{name}.bias", f"CNN/b_cnn_{i}", (number,))
    width = config.n_filters
    for k in range(config.n_highway):
        # Their "carry" is the gate that lets the transformed value through.
        for ours, theirs in (("transform", "transform"), ("gate", "carry")):
            yield _Part(f"encoder.highways.{k}.{ours}_weight", f"CNN_high_{k}/W_{theirs}", (width, width))
            yield _Part(f"encoder.highways.{k}.{ours}_bias", f"CNN_high_{k}/b_{theirs}", (width,))
    if config.has_character_projection:
        yield _Part("encoder.projection.weight", "CNN_proj/W_proj", (width, config.projection))
        yield _Part("encoder.projection.bias", "CNN_proj/b_proj", (config.projection,))


def _lstm_parts(config: BiLMConfig) -> Iterator[_Part]:
    width, cells = config.projection, config.cells
    both = (2 * width, 4 * cells)
    for d, direction in enumerate(("forward_lm", "backward_lm")):
        for layer in range(config.n_layers):
            ours = f"{direction}.{layer}"
            theirs = f"RNN_{d}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            yield _Part(f"{ours}.input_weight", f"{theirs}/W_0", both, slice(None, width), has_gates=True)
            yield _Part(f"{ours}.recurrent_weight", f"{theirs}/W_0", both, slice(width, None), has_gates=True)
            yield _Part(f"{ours}.bias", f"{theirs}/B", (4 * cells,), has_gates=True)
            if config.has_lstm_projection:
                yield _Part(f"{ours}.projection_weight", f"{theirs}/W_P_0", (cells, width))


def _require_rows(file: TensorFile, config: BiLMConfig) -> None:
    table = file.find(TABLE_OF_WORDS) if config.token_encoder == "words" else None
    if table is not None and table.shape[:1] != (config.n_words,):
        rows = table.shape[0] if table.shape else 0
        raise WeightsError(Errors.E142.format(found=config.n_words, expected=rows, path=file.path))


def _fitting(file: TensorFile, name: str, shape: tuple[int, ...]) -> StoredTensor:
    found = file.find(name)
    if found is None:
        raise WeightsError(Errors.E128.format(path=file.path, name=name))
    if found.shape != shape:
        raise WeightsError(Errors.E129.format(path=file.path, name=name, found=found.shape, expected=shape))
    return found


def _refuse_undescribed(file: TensorFile, names: list[str], described: Container[str]) -> None:
    """Weights beyond those described mean that the options are another model's, though all shapes may fit."""
    names = [name for name in names if name.startswith(_DESCRIBED) and name not in described]
    if names:
        raise WeightsError(Errors.E131.format(path=file.path, names=shown(names)))


def _refuse_inflated(file: TensorFile, shapes: dict[str, tuple[int, ...]]) -> None:
    """A small file may declare tensors of any size: they are not stored, all zeros and compressed, or the same bytes again
    and again."""
    declared = 4 * sum(math.prod(shape) for shape in shapes.values())
    if declared > _MOST_COMPRESSION * file.size:
        raise WeightsError(Errors.E133.format(path=file.path, declared=declared, size=file.size))


def _require_finite(file: TensorFile, name: str, values: NDArray[np.float32]) -> None:
    if not is_finite(torch.from_numpy(values)):
        raise WeightsError(Errors.E132.format(name=name, path=file.path))


def _uninitialised(config: BiLMConfig, vocabularies: Mapping[str, Sequence[str]]) -> BiLM:
    """A biLM whose parameters hold no values yet: no time, and none of torch's random numbers, goes into them."""
    with shapes_only():
        bilm = BiLM(config, vocabularies)
    give_memory(bilm)
    return bilm.requires_grad_(False).eval()


def _copy(part: _Part, tensor: StoredTensor, values: NDArray[np.float32]) -> None:
    """Read a part of a tensor straight into a parameter's memory."""
    if not part.has_gates:
        tensor.read_direct(values.reshape(part.shape))
        return
    for theirs, ours in _gate_columns(part):
        if values.ndim == 1:
            tensor.read_direct(values, np.s_[theirs], np.s_[ours])
        else:
            tensor.read_direct(values, np.s_[part.rows, theirs], np.s_[:, ours])


def _copy_back(part: _Part, values: NDArray[np.float32], tensor: NDArray[np.float32]) -> None:
    if not part.has_gates:
        tensor[...] = values.reshape(part.shape)
        return
    for theirs, ours in _gate_columns(part):
        if values.ndim == 1:
            tensor[theirs] = values[ours]
        else:
            tensor[part.rows, theirs] = values[:, ours]


def _gate_columns(part: _Part) -> Iterator[tuple[slice, slice]]:
    """The columns of each gate there and here."""
    cells = part.shape[-1] // len(_GATES)
    for here, gate in enumerate(_GATES):
        there = _GATES_IN_FILE.index(gate)
        yield slice(there * cells, (there + 1) * cells), slice(here * cells, (here + 1) * cells)
