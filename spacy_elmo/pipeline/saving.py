"""How an elmo pipe is saved and loaded: its weights travel with the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import srsly
from spacy import util
from spacy.vocab import Vocab
from thinc.api import Model

from .. import __version__
from ..layers.bilm_model import bilm_shim

if TYPE_CHECKING:
    from ..lm.bilm import BiLM
    from ..weights.source import Source
    from .surprisal import Surprisal


class Saved:
    """Saves and loads an elmo pipe: its weights and what is needed to read them. Its settings are in the config of the
    pipeline.

    `surprisal` has the softmax of a pipe that tells how unexpected tokens are.
    """

    surprisal: Surprisal | None = None

    vocab: Vocab
    model: Model[Any, Any]
    cfg: dict[str, Any]

    @property
    def bilm(self) -> BiLM:
        """The biLM."""
        raise NotImplementedError

    def _take_new_weights(self) -> None:
        """Adapt to other weights."""

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """Serialize the component, its weights included.

        exclude (Iterable[str]): What to leave out: "cfg", "vocab", "bilm".
        RETURNS (bytes): The serialized component.
        """
        # The weights come first: what is said of them in "cfg" is known once they are loaded.
        parts = {
            "bilm": self._weights_to_bytes,
            "cfg": lambda: srsly.json_dumps(self._description()),
            "vocab": lambda: self.vocab.to_bytes(exclude=exclude),
        }
        if self.surprisal is not None:
            # Left out together with "bilm".
            parts["bilm.softmax"] = self._softmax_to_bytes
        return util.to_bytes(parts, exclude)

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> Saved:
        """Take over what `to_bytes` gave. The settings stay those of this component's config.

        bytes_data (bytes): The serialized component.
        exclude (Iterable[str]): What to leave out: "cfg", "vocab", "bilm".
        RETURNS (Elmo): This component.
        """
        parts: dict[str, Callable[[bytes], Any]] = {
            "cfg": lambda data: self.cfg.update(srsly.json_loads(data)),
            "vocab": lambda data: self.vocab.from_bytes(data, exclude=exclude),
            "bilm": self._weights_from_bytes,
        }
        if self.surprisal is not None:
            parts["bilm.softmax"] = self.surprisal.from_bytes
        util.from_bytes(bytes_data, parts, exclude)
        self._take_new_weights()
        return self

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        """Save the component. The weights go to `bilm/`, a native weights directory that any tool of ours can read.

        path (str | Path): A directory.
        exclude (Iterable[str]): What to leave out: "cfg", "vocab", "bilm".
        """
        parts = {
            "bilm": self._save_weights,
            "cfg": lambda file: srsly.write_json(file, self._description()),
            "vocab": lambda directory: self.vocab.to_disk(directory, exclude=exclude),
        }
        util.to_disk(path, parts, exclude)

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> Saved:
        """Load what `to_disk` saved; the source of the weights is not needed again. The settings stay those of this
        component's config.

        path (str | Path): The directory.
        exclude (Iterable[str]): What to leave out: "cfg", "vocab", "bilm".
        RETURNS (Elmo): This component.
        RAISES (WeightsError): E1xx if the weights are missing or broken.
        """
        # The weights come first: where all is missing, they say so with a code.
        parts: dict[str, Callable[[Path], Any]] = {
            "bilm": self._load_weights,
            "cfg": lambda file: self.cfg.update(srsly.read_json(file)),
            "vocab": lambda directory: self.vocab.from_disk(directory, exclude=exclude),
        }
        util.from_disk(path, parts, exclude)
        self._take_new_weights()
        return self

    def _description(self) -> dict[str, Any]:
        """What made this file, and the name of the weights; the settings themselves are in the config of the pipeline."""
        config = bilm_shim(self.model).peek_config()
        width, layers = (None, None) if config is None else (config.width, config.n_outputs)
        shim = bilm_shim(self.model)
        fingerprint = shim.fingerprint() if shim.is_loaded else None
        return {"spacy_elmo": __version__, "width": width, "layers": layers, "fingerprint": fingerprint}

    def _save_weights(self, directory: Path) -> None:
        from ..weights.native import SOFTMAX_FILE, VOCABULARY_FILE, save_bilm

        bilm = self.bilm
        # Weights that came in half precision go out in half precision; nothing is lost.
        half = all(bool((p == p.half()).all()) for p in bilm.parameters())
        save_bilm(bilm, directory, half=half)
        if self.surprisal is not None:
            self._ensure_softmax()
            self.surprisal.save(directory)
        else:
            # The softmax of a biLM that was here before is not that of this one.
            for name in (SOFTMAX_FILE, VOCABULARY_FILE):
                (directory / name).unlink(missing_ok=True)

    def _weights_to_bytes(self) -> bytes:
        self._ensure_softmax()
        self.bilm
        return bilm_shim(self.model).to_bytes()

    def _load_weights(self, directory: Path) -> None:
        from ..weights.native import load_bilm

        bilm_shim(self.model).bilm = load_bilm(directory)
        if self.surprisal is not None:
            self.surprisal.read(directory)

    def _weights_from_bytes(self, data: bytes) -> None:
        bilm_shim(self.model).from_bytes(data)
        self._forget_softmax()

    def _softmax_to_bytes(self) -> bytes:
        return b"" if self.surprisal is None else self.surprisal.to_bytes()

    def _load_source(self, source: Source) -> None:
        """Take the weights from somewhere else, with their softmax if it is needed."""
        if self.surprisal is None:
            bilm_shim(self.model).load(source)
        else:
            self.surprisal.load(self.model, source)
        self._take_new_weights()

    def _ensure_softmax(self) -> None:
        if self.surprisal is not None:
            self.surprisal.ensure(self.model)

    def _forget_softmax(self) -> None:
        if self.surprisal is not None:
            self.surprisal.forget()
