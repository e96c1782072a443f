"""Read the pair options.json + weights.hdf5, the format of bilm-tf and AllenNLP and of most ELMo models in the wild.

The files keep TensorFlow's order (in, out), as BiLM does. Only the order of the gates differs: input, candidate,
forget, output in the file; input, forget, output, candidate in BiLM.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError, ElmoWarning, Errors, Warnings, WeightsError
from ..lm.bilm import BiLM
from ..lm.config import N_CHARACTERS, BiLMConfig, InitialState

# Settings of training, of TensorFlow's graph, or of what the weights say better: they change nothing here.
_IGNORED = {
    "": {
        "bidirectional",
        "dropout",
        "all_clip_norm_val",
        "n_epochs",
        "n_train_tokens",
        "batch_size",
        "n_tokens_vocab",
        "unroll_steps",
        "n_negative_samples_batch",
        "learning_rate",
        "share_embedding_softmax",
        "sample_softmax",
    },
    "lstm": {"reverse"},
    "char_cnn": {"n_characters", "projection_after_highway"},
}
_READ = {
    "": {"lstm", "char_cnn"},
    "lstm": {"dim", "projection_dim", "n_layers", "use_skip_connections", "cell_clip", "proj_clip"},
    "char_cnn": {"embedding", "filters", "max_characters_per_token", "activation", "n_highway"},
}

# The groups of the file that options.json describes in full; others (such as a softmax) are not the biLM's.
_DESCRIBED = ("char_embed", "CNN", "RNN_")

_GATES_IN_FILE = "ijfo"
_GATES = "ifoj"


class _Part(NamedTuple):
    """Rows `rows` of dataset `dataset`, which has `shape` in full, are BiLM's parameter `parameter`."""

    parameter: str
    dataset: str
    shape: tuple[int, ...]
    rows: slice = slice(None)
    has_gates: bool = False


def load_bilm_hdf5(
    options_path: str | Path, weights_path: str | Path, initial_state: InitialState = "canonical"
) -> BiLM:
    """Read a biLM in the format of bilm-tf and AllenNLP.

    options_path (str | Path): The options.json. `n_characters` is not used: the weights tell.
    weights_path (str | Path): The hdf5 file. Only the biLM is read from it.
    initial_state (str): Where every sentence starts, see BiLMConfig. "canonical" comes closest to the originals, which
        carry their state from batch to batch, with output that depends on nothing but the sentence.
    RETURNS (BiLM): float32 parameters that require no gradient.
    RAISES (WeightsError): E120 if a file cannot be read; E121–E125 for options that describe no biLM of this kind; E126
        without h5py; E127–E132 for weights that are damaged, unsafe or do not fit the options.
    RAISES (ConfigError): E001 if `initial_state` is unknown.
    """
    options_path, weights_path = Path(options_path), Path(weights_path)
    config = replace(_read_options(options_path), initial_state=initial_state)
    with _open_hdf5(weights_path) as file:
        with _damage_named(weights_path):
            datasets = [(part, _plain_dataset(file, part, weights_path)) for part in _parts(config)]
            _refuse_undescribed(file, {part.dataset for part, _ in datasets}, weights_path)
        bilm = _uninitialised(config)
        parameters = dict(bilm.named_parameters())
        for part, dataset in datasets:
            values = parameters[part.parameter].detach().numpy()
            with _damage_named(weights_path):
                _copy(part, dataset, values)
            if not np.isfinite(values).all():
                raise WeightsError(Errors.E132.format(name=part.dataset, path=weights_path))
    return bilm


def _read_options(path: Path) -> BiLMConfig:
    try:
        options = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise WeightsError(Errors.E120.format(path=path, problem=error.strerror or error)) from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(Errors.E121.format(path=path, problem=error)) from error
    _require(path, "top level", options, dict)
    if options.get("char_cnn") is None:
        raise WeightsError(Errors.E123.format(path=path))
    if options.get("bidirectional", True) is not True:
        raise WeightsError(Errors.E124.format(path=path, found=options["bidirectional"]))
    _require(path, "lstm", options.get("lstm"), dict)
    _require(path, "char_cnn", options["char_cnn"], dict)
    _require(path, "char_cnn.embedding", options["char_cnn"].get("embedding"), dict)
    _warn_of_unknown(path, options)
    return _to_config(path, options["lstm"], options["char_cnn"])


def _to_config(path: Path, lstm: dict[str, Any], char_cnn: dict[str, Any]) -> BiLMConfig:
    """What bilm-tf lets out has bilm-tf's default: one layer, no skip connections, no clipping, no highways."""
    n_highway = char_cnn.get("n_highway")
    try:
        return BiLMConfig(
            character_dim=char_cnn["embedding"].get("dim"),
            filters=char_cnn.get("filters"),  # type: ignore[arg-type]
            max_characters=char_cnn.get("max_characters_per_token"),  # type: ignore[arg-type]
            activation=char_cnn.get("activation"),  # type: ignore[arg-type]
            n_highway=0 if n_highway is None else n_highway,
            projection=lstm.get("projection_dim"),  # type: ignore[arg-type]
            cells=lstm.get("dim"),  # type: ignore[arg-type]
            n_layers=lstm.get("n_layers", 1),
            skip_connections=lstm.get("use_skip_connections", False),
            cell_clip=lstm.get("cell_clip"),
            projection_clip=lstm.get("proj_clip"),
        )
    except ConfigError as error:
        raise WeightsError(Errors.E125.format(path=path, problem=error)) from error


def _require(path: Path, key: str, found: object, expected: type) -> None:
    if not isinstance(found, expected):
        kind = "an object" if expected is dict else expected.__name__
        raise WeightsError(Errors.E122.format(path=path, key=key, found=found, expected=kind))


def _warn_of_unknown(path: Path, options: dict[str, Any]) -> None:
    unknown = []
    for section, read in _READ.items():
        settings = options[section] if section else options
        prefix = f"{section}." if section else ""
        unknown += [prefix + name for name in sorted(set(settings) - read - _IGNORED[section])]
    if unknown:
        warnings.warn(Warnings.W120.format(path=path, names=unknown), ElmoWarning, stacklevel=4)


def _parts(config: BiLMConfig) -> Iterator[_Part]:
    """Everything that the file must hold, one after another, so that absurd numbers fail at the first dataset."""
    yield from _encoder_parts(config)
    yield from _lstm_parts(config)


def _encoder_parts(config: BiLMConfig) -> Iterator[_Part]:
    yield _Part("encoder.characters", "char_embed", (N_CHARACTERS, config.character_dim))
    for i, (width, number) in enumerate(config.filters):
        name = f"encoder.convolutions.{i}"
        yield _Part(f"{name}.weight", f"CNN/W_cnn_{i}", (1, width, config.character_dim, number))
        yield _Part(f"{name}.bias", f"CNN/b_cnn_{i}", (number,))
    width = config.n_filters
    for k in range(config.n_highway):
        # The file's "carry" is the gate that lets the transformed value through.
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


@contextmanager
def _open_hdf5(path: Path) -> Iterator[Any]:
    try:
        import h5py
    except ImportError as error:
        raise WeightsError(Errors.E126.format(path=path)) from error
    try:
        path.open("rb").close()
    except OSError as error:
        raise WeightsError(Errors.E120.format(path=path, problem=error.strerror or error)) from error
    with _damage_named(path):
        file = h5py.File(path, "r")
    with file:
        yield file


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """What hdf5 cannot make sense of is the file's fault."""
    try:
        yield
    except (OSError, RuntimeError, KeyError) as error:
        raise WeightsError(Errors.E127.format(path=path, problem=error)) from error


def _plain_dataset(file: Any, part: _Part, path: Path) -> Any:
    """The dataset of a part, if it is floats of the right shape that lie in this very file."""
    import h5py

    found = file
    for name in part.dataset.split("/"):
        link = found.get(name, getlink=True) if isinstance(found, h5py.Group) else None
        if link is None:
            raise WeightsError(Errors.E128.format(path=path, name=part.dataset))
        if not isinstance(link, h5py.HardLink):
            raise WeightsError(Errors.E130.format(path=path, name=part.dataset, found="a link to elsewhere"))
        found = found[name]
    kind = _unreadable_kind(found)
    if kind is not None:
        raise WeightsError(Errors.E130.format(path=path, name=part.dataset, found=kind))
    if found.shape != part.shape:
        raise WeightsError(Errors.E129.format(path=path, name=part.dataset, found=found.shape, expected=part.shape))
    return found


def _unreadable_kind(found: Any) -> str | None:
    """What keeps an hdf5 object from being read, None for a plain dataset."""
    import h5py

    if not isinstance(found, h5py.Dataset):
        return f"a {type(found).__name__.lower()}"
    if found.is_virtual or found.external:
        return "a dataset kept in other files"
    return None if found.dtype.kind == "f" else f"a dataset of {found.dtype}"


def _refuse_undescribed(file: Any, described: set[str], path: Path) -> None:
    """Weights beyond those described mean that the options are another model's, though all shapes may fit."""
    import h5py

    names: list[str] = []

    def collect(name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset) and name.startswith(_DESCRIBED) and name not in described:
            names.append(name)

    file.visititems(collect)
    if names:
        raise WeightsError(Errors.E131.format(path=path, names=names))


def _uninitialised(config: BiLMConfig) -> BiLM:
    """A biLM whose parameters hold no values yet: no time, and none of torch's random numbers, goes into them."""
    with torch.device("meta"):
        bilm = BiLM(config)
    return bilm.to_empty(device="cpu").requires_grad_(False).eval()


def _copy(part: _Part, dataset: Any, values: NDArray[np.float32]) -> None:
    """Read a part of a dataset straight into a parameter's memory."""
    if not part.has_gates:
        dataset.read_direct(values.reshape(part.shape))
        return
    cells = values.shape[-1] // len(_GATES)
    for gate in _GATES:
        source, target = _GATES_IN_FILE.index(gate), _GATES.index(gate)
        from_columns = slice(source * cells, (source + 1) * cells)
        to_columns = slice(target * cells, (target + 1) * cells)
        if values.ndim == 1:
            dataset.read_direct(values, np.s_[from_columns], np.s_[to_columns])
        else:
            dataset.read_direct(values, np.s_[part.rows, from_columns], np.s_[:, to_columns])
