"""Our own format: a directory with `config.json` and `model.safetensors`, and what may stand beside them.

config.json             the BiLMConfig, and the version of the format
model.safetensors       the parameters under their names in the module, float32 or float16; the vocabularies that a token
                        encoder over words looks up, each as a JSON list in UTF-8, under "vocabulary." and its name
softmax.safetensors     the output head, where the model was trained here (kept apart: features do not need it)
vocabulary.txt.gz       the words the softmax predicts
README.md               the model card
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from ..errors import ConfigError, Errors, WeightsError, detail_of, shown
from ..lm.bilm import BiLM
from ..lm.config import BiLMConfig
from ..lm.softmax import OutputHead, build_head
from .files import names_in, read_json, write_atomically
from .modules import give_memory, is_finite, shapes_only, stored_tensors
from .safetensors_stream import StoredTensor, pieces, read_header

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
SOFTMAX_FILE = "softmax.safetensors"
VOCABULARY_FILE = "vocabulary.txt.gz"
CARD_FILE = "README.md"

FORMAT = 1

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_VOCABULARY = "vocabulary."
# Strings take many times the memory of their bytes. A vocabulary of five million words is about half of this.
_MOST_VOCABULARY_BYTES = 2**27
# What broken files can make json and torch raise.
_BROKEN = (OSError, ValueError, KeyError, TypeError, ArithmeticError, RuntimeError)

_Tensors = Mapping[str, Tensor] | Mapping[str, StoredTensor]


def save_bilm(bilm: BiLM, directory: str | Path, *, half: bool = False, model_card: str | None = None) -> None:
    """Write a biLM; each file is whole or as it was before.

    bilm (BiLM): The model.
    directory (Path): Where to; made if need be.
    half (bool): Store float16 instead of float32.
    model_card (str | None): Text of the README.md beside the weights.
    RAISES (OSError): If a file cannot be written. (WeightsError): E103 if a weight is beyond the range of float16.
    """
    directory = Path(directory)
    if half:
        _require_range_of_half(bilm)
    write_atomically(directory / WEIGHTS_FILE, pieces(_tensors(bilm), floats=torch.float16 if half else torch.float32))
    config = {"format": FORMAT, "bilm": bilm.config.to_dict()}
    write_atomically(directory / CONFIG_FILE, (json.dumps(config, indent=2) + "\n").encode("utf-8"))
    if model_card is not None:
        write_atomically(directory / CARD_FILE, model_card.encode("utf-8"))


def load_bilm(directory: str | Path) -> BiLM:
    """Read a biLM.

    directory (Path): What `save_bilm` wrote.
    RETURNS (BiLM): In float32, without gradients.
    RAISES (WeightsError): E100 if a file is missing, E101 if it is broken, E102 if config and weights do not fit,
        E103 for values that are not finite, E104 for a format of the future.
    """
    directory = Path(directory)
    config = read_config(directory)
    path = _existing(directory, WEIGHTS_FILE)
    with _damage_named(str(path)), open(path, "rb", buffering=0) as file:
        tensors, _ = read_header(file)
        return _build(config, tensors, str(path))


def read_config(directory: str | Path) -> BiLMConfig:
    """Read the config of a biLM without its weights.

    RAISES (WeightsError): E100, E101, E104 as in `load_bilm`.
    """
    path = _existing(Path(directory), CONFIG_FILE)
    with _damage_named(str(path)):
        return _config_of(read_json(path), str(path))


def bilm_to_bytes(bilm: BiLM) -> bytes:
    """RETURNS (bytes): The biLM as safetensors, its config in the metadata."""
    config = json.dumps({"format": FORMAT, "bilm": bilm.config.to_dict()})
    return b"".join(pieces(_tensors(bilm), {"config": config}, torch.float32))


def bilm_from_bytes(data: bytes) -> BiLM:
    """The inverse of `bilm_to_bytes`.

    RAISES (WeightsError): E101–E104 as in `load_bilm`.
    """
    name = "the bytes given"
    with _damage_named(name), io.BytesIO(data) as stream:
        tensors, metadata = read_header(stream)
        return _build(_config_of(json.loads(metadata["config"]), name), tensors, name)


def save_head(head: OutputHead, directory: str | Path, *, half: bool = False) -> None:
    """Write the output head beside a biLM.

    head (OutputHead): The head.
    directory (Path): Where to.
    half (bool): Store float16 instead of float32.
    RAISES (OSError): If the file cannot be written. (WeightsError): E103 if a weight is beyond the range of float16.
    """
    if half:
        _require_range_of_half(head)
    tensors = {name: tensor.half() if half else tensor for name, tensor in head.state_dict().items()}
    write_atomically(Path(directory) / SOFTMAX_FILE, pieces(tensors, {"softmax": json.dumps(head.settings)}))


def load_head(directory: str | Path) -> OutputHead:
    """Read the output head that stands beside a biLM.

    RAISES (WeightsError): E100–E103 as in `load_bilm`.
    """
    path = _existing(Path(directory), SOFTMAX_FILE)
    with _damage_named(str(path)), open(path, "rb", buffering=0) as file:
        return _build_head(file, str(path))


def head_to_bytes(head: OutputHead) -> bytes:
    """RETURNS (bytes): The output head as safetensors, its settings in the metadata, as `save_head` writes it."""
    return b"".join(pieces(head.state_dict(), {"softmax": json.dumps(head.settings)}))


def head_from_bytes(data: bytes) -> OutputHead:
    """The inverse of `head_to_bytes`.

    RAISES (WeightsError): E101–E103 as in `load_bilm`.
    """
    name = "the bytes given"
    with _damage_named(name), io.BytesIO(data) as stream:
        return _build_head(stream, name)


def fill(module: nn.Module, tensors: _Tensors, source: str) -> None:
    """Put tensors into the parameters and buffers of their names.

    module (nn.Module): What to overwrite.
    tensors (Mapping): One tensor for each parameter and buffer, none else.
    source (str): Where they come from, for messages.
    RAISES (WeightsError): E102 if names or shapes do not fit, E103 for values that are not finite.
    """
    _require_fit(module, tensors, source)
    with torch.no_grad():
        for name, parameter in stored_tensors(module).items():
            tensor = tensors[name]
            if isinstance(tensor, StoredTensor):
                tensor.read_into(parameter)
            else:
                parameter.copy_(tensor)
            if not is_finite(parameter):
                raise WeightsError(Errors.E103.format(path=source, name=name))


@contextmanager
def _damage_named(path: str) -> Iterator[None]:
    """What cannot be read is the file's fault."""
    try:
        yield
    except WeightsError:
        raise
    except _BROKEN as error:
        raise WeightsError(Errors.E101.format(path=path, detail=detail_of(error))) from error


def _build(config: BiLMConfig, tensors: dict[str, StoredTensor], source: str) -> BiLM:
    """Nothing is allocated before the shapes are known to be those of the tensors: the config may ask for any size."""
    if config.n_layers + config.n_highway > len(tensors):
        problems = f"{config.n_layers} layers and {config.n_highway} highways, but only {len(tensors)} tensors"
        raise WeightsError(Errors.E102.format(path=source, problems=problems))
    with torch.inference_mode(False):
        try:
            vocabularies, tensors = _without_vocabularies(tensors)
            with shapes_only():
                bilm = BiLM(config, vocabularies)
        except (RuntimeError, ArithmeticError, TypeError, ValueError) as error:
            raise WeightsError(Errors.E102.format(path=source, problems=detail_of(error))) from error
        _require_fit(bilm, tensors, source)
        give_memory(bilm)
        fill(bilm, tensors, source)
    return bilm.requires_grad_(False).eval()


def _build_head(stream: BinaryIO, source: str) -> OutputHead:
    tensors, metadata = read_header(stream)
    with torch.inference_mode(False):
        with shapes_only():
            head = build_head(json.loads(metadata["softmax"]))
        _require_fit(head, tensors, source)
        give_memory(head)
        fill(head, tensors, source)
    return head


def _without_vocabularies(tensors: dict[str, StoredTensor]) -> tuple[dict[str, list[str]], dict[str, StoredTensor]]:
    """The vocabularies among tensors, and the others."""
    names = [name for name in tensors if name.startswith(_VOCABULARY)]
    vocabularies = {name.removeprefix(_VOCABULARY): _to_strings(name, tensors[name]) for name in names}
    return vocabularies, {name: tensor for name, tensor in tensors.items() if name not in names}


def _to_strings(name: str, tensor: StoredTensor) -> list[str]:
    size = tensor.end - tensor.start
    if tensor.dtype is not torch.uint8 or len(tensor.shape) != 1 or size > _MOST_VOCABULARY_BYTES:
        found = f"{name} is {tensor.dtype} {tensor.shape}"
        raise ValueError(f"{found}, not at most {_MOST_VOCABULARY_BYTES} bytes in a row")
    strings = json.loads(tensor.read().numpy().tobytes().decode("utf-8", "surrogatepass"))
    if not isinstance(strings, list):
        raise ValueError(f"{name} is no list")
    return strings


def _from_strings(strings: Sequence[str]) -> Tensor:
    data = json.dumps(list(strings), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _require_fit(module: nn.Module, tensors: _Tensors, source: str) -> None:
    parameters = stored_tensors(module)
    missing, surplus = sorted(parameters.keys() - tensors.keys()), sorted(tensors.keys() - parameters.keys())
    common = [name for name in parameters if name in tensors]
    shapes = {
        name: (tuple(tensors[name].shape), tuple(parameters[name].shape))
        for name in common
        if tuple(tensors[name].shape) != tuple(parameters[name].shape)
    }
    types = {name: str(tensors[name].dtype) for name in common if tensors[name].dtype not in _FLOATS}
    if missing or surplus or shapes or types:
        found = {"missing": missing, "not expected": surplus, "shapes (found, expected)": shapes, "no floats": types}
        problems = "; ".join(f"{kind}: {shown(names)}" for kind, names in found.items() if names)
        raise WeightsError(Errors.E102.format(path=source, problems=problems))


def _tensors(bilm: BiLM) -> dict[str, Tensor]:
    vocabularies = {_VOCABULARY + name: _from_strings(strings) for name, strings in bilm.encoder.vocabularies.items()}
    return {**bilm.state_dict(), **vocabularies}


def _require_range_of_half(module: nn.Module) -> None:
    for name, tensor in module.state_dict().items():
        if not is_finite(tensor.half()):
            raise WeightsError(Errors.E103.format(path="float16", name=name))


def _config_of(settings: Any, source: str) -> BiLMConfig:
    if isinstance(settings, dict) and settings.get("format", FORMAT) != FORMAT:
        raise WeightsError(Errors.E104.format(path=source, found=shown(settings["format"]), known=FORMAT))
    if not isinstance(settings, dict) or "format" not in settings or not isinstance(settings.get("bilm"), dict):
        raise WeightsError(Errors.E101.format(path=source, detail="it has no 'format' or no object 'bilm'"))
    try:
        return BiLMConfig.from_dict(settings["bilm"])
    except ConfigError as error:
        raise WeightsError(Errors.E101.format(path=source, detail=detail_of(error))) from error


def _existing(directory: Path, name: str) -> Path:
    path = directory / name
    if not path.is_file():
        raise WeightsError(Errors.E100.format(directory=directory, name=name, there=names_in(directory)))
    return path
