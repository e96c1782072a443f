"""Read what bilm-tf leaves behind while it trains: `options.json`, and TensorFlow checkpoints `model.ckpt-<step>`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors, WeightsError
from ..lm.bilm import BiLM
from ..lm.config import InitialState
from ..lm.softmax import OutputHead
from .bilm_options import read_options
from .bilm_tensors import SOFTMAX_WEIGHT, TABLE_OF_WORDS, StoredTensor, read_bilm, read_head
from .tensor_bundle import TensorBundle

_SCOPE = "lm/"

# A part of an LSTM. The level of layers is missing if there is but one; the old names are those of TensorFlow 0.12, the
# weights were called so in TensorFlow 1.0 and 1.1.
_CELL = re.compile(
    r"(RNN_[01])/(?:rnn|RNN)/(?:(?:multi_rnn_cell/cell_|MultiRNNCell/Cell)(\d+)/)?(?:lstm_cell|LSTMCell)/(.+)"
)
_CELL_PARTS = {
    "kernel": "W_0",
    "weights": "W_0",
    "bias": "B",
    "biases": "B",
    "projection/kernel": "W_P_0",
    "projection/weights": "W_P_0",
}


def load_tf_checkpoint(
    options_path: str | Path,
    prefix: str | Path,
    initial_state: InitialState = "canonical",
    vocabulary_path: str | Path | None = None,
    notes: list[str] | None = None,
) -> tuple[BiLM, OutputHead | None]:
    """Read a biLM from a checkpoint that bilm-tf wrote, without TensorFlow.

    options_path (str | Path): The options.json that bilm-tf wrote beside it.
    prefix (str | Path): The checkpoint: its path without or with `.index`, such as `model.ckpt-935588`.
    initial_state (str): Where every sentence starts, as in `load_bilm_hdf5`.
    vocabulary_path (str | Path | None): The words of a table of words, as in `load_bilm_hdf5`.
    notes (list[str] | None): Sentences on what was assumed and what was ignored are appended.
    RETURNS (tuple[BiLM, OutputHead | None]): The biLM with float32 parameters that require no gradient, and its full
        softmax; None if the checkpoint has no softmax.
    RAISES (WeightsError): E120–E125 for options that cannot be read or describe no biLM of this kind; E128–E133 for
        weights that do not fit them, E138, E139 for a checkpoint that is incomplete or damaged; E140, E142 for a
        vocabulary that is none or not theirs.
    RAISES (ConfigError): E001 if `initial_state` is unknown.
    """
    vocabulary_path = None if vocabulary_path is None else Path(vocabulary_path)
    options = read_options(Path(options_path), initial_state, vocabulary_path)
    prefix = Path(prefix)
    file = _Checkpoint(TensorBundle(prefix.with_name(prefix.name.removesuffix(".index"))))
    bilm = read_bilm(file, options.config, options.vocabularies)
    head = read_head(file, options.config.projection, TABLE_OF_WORDS if options.shares_table else SOFTMAX_WEIGHT)
    if notes is not None:
        notes += options.notes
    return bilm, head


def latest_checkpoint(directory: str | Path) -> Path:
    """Find the newest checkpoint in a directory.

    directory (str | Path): Where bilm-tf saved.
    RETURNS (Path): For `load_tf_checkpoint`: the one that the file `checkpoint` names, if it is there (under another
        path, maybe: models move), or else the one of the most steps.
    RAISES (WeightsError): E138 if there is none.
    """
    directory = Path(directory)
    prefixes = [path.with_suffix("") for path in directory.glob("*.index") if path.is_file()]
    if not prefixes:
        raise WeightsError(Errors.E138.format(prefix=directory / "*", problem="no file ends in '.index'"))
    named = _named_latest(directory / "checkpoint")
    return max(prefixes, key=lambda prefix: (prefix.name == named, _step(prefix), prefix.name))


def _named_latest(path: Path) -> str:
    """The name that a file `checkpoint` says, a protocol buffer in text, without its directory."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = re.match(r'\s*model_checkpoint_path:\s*"([^"]*)"', file.read(2**16))
    except OSError:
        return ""
    return re.split(r"[/\\]", found[1])[-1] if found else ""


def _step(prefix: Path) -> int:
    found = re.search(r"-(\d{1,18})$", prefix.name)
    return int(found[1]) if found else -1


class _Checkpoint:
    """The variables of a checkpoint by the names that bilm-tf's dump gives them; the optimizer's are left out."""

    def __init__(self, bundle: TensorBundle) -> None:
        self.path, self.size = bundle.prefix, bundle.size
        self._bundle = bundle
        scope = _SCOPE if any(name.startswith(_SCOPE) for name in bundle.entries) else ""
        self._variables = {
            _dumped_name(name.removeprefix(scope)): name
            for name in bundle.entries
            if name.startswith(scope) and not _is_slot(name, bundle)
        }
        self._found: dict[str, _Variable] = {}

    def names(self) -> list[str]:
        return list(self._variables)

    def find(self, name: str) -> StoredTensor | None:
        if name in self._variables and name not in self._found:
            self._found[name] = _Variable(self._bundle.tensor(self._variables[name]))
        return self._found.get(name)


class _Variable:
    """The values of a variable, verified and still in their file."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.shape = values.shape
        self._values = values

    def read_direct(self, dest: NDArray[Any], source_sel: Any = None, dest_sel: Any = None) -> None:
        with np.errstate(over="ignore"):  # what is too large for float32 is refused as not finite
            dest[... if dest_sel is None else dest_sel] = self._values[... if source_sel is None else source_sel]


def _is_slot(name: str, bundle: TensorBundle) -> bool:
    """Whether it is what an optimizer keeps for a variable: it stands below the variable's own name."""
    parts = name.split("/")
    return any("/".join(parts[:end]) in bundle.entries for end in range(1, len(parts)))


def _dumped_name(variable: str) -> str:
    found = _CELL.fullmatch(variable)
    if found is None:
        return variable
    direction, layer, part = found.groups()
    return f"{direction}/RNN/MultiRNNCell/Cell{layer or 0}/LSTMCell/{_CELL_PARTS.get(part, part)}"
