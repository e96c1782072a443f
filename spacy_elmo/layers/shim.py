"""The bridge between Thinc and the biLM: where its weights come from, where they live, how they are kept.

Thinc's own PyTorchShim flips the module between train and eval mode in every prediction (unsafe with threads), keeps
its id when copied (two copies then share an optimizer's moments) and reads pickled weights. This one does not.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinc.shims.shim import Shim
from thinc.util import get_torch_default_device

from ..errors import ElmoError, Errors, WeightsError

if TYPE_CHECKING:
    import torch

    from ..lm.bilm import BiLM
    from ..lm.config import BiLMConfig

EMBEDDED_MODEL = Path(__file__).parent.parent / "models" / "en_elmo_sm"


class _Loading:
    """One lock for all shims, so that none carries a lock through copies and pickles."""

    lock = threading.Lock()


def _renew_lock() -> None:
    _Loading.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    # A thread that loads while the process forks would leave the lock taken in the child forever.
    os.register_at_fork(after_in_child=_renew_lock)


class BiLMShim(Shim):
    """Hold a biLM, frozen: prediction only, no gradients. Weights are loaded at first use, by one thread.

    source (Path | None): A native weights directory; None for the embedded model. It is read only if the weights have
        not come from bytes or from a saved pipeline before.
    initial_state (str | None): Where sentences start, in place of what the weights' own config says.
    """

    def __init__(self, source: Path | None = None, initial_state: str | None = None) -> None:
        super().__init__(None)
        self.source = source
        self.initial_state = initial_state
        self.device = str(get_torch_default_device())

    @property
    def bilm(self) -> BiLM:
        """The biLM, loaded if need be.

        RAISES (WeightsError): E302 if no weights were loaded and the source is gone; E1xx if it is broken.
        """
        if self._model is None:
            with _Loading.lock:
                if self._model is None:
                    self._model = self._prepare(self._load)
        model: BiLM = self._model
        return model

    @bilm.setter
    def bilm(self, bilm: BiLM) -> None:
        self._model = self._prepare(lambda: bilm)

    @property
    def is_loaded(self) -> bool:
        """Whether the weights are in memory."""
        return self._model is not None

    def peek_config(self) -> BiLMConfig | None:
        """Read the config, not the weights.

        RETURNS (BiLMConfig | None): None if the source cannot be read. That is no error yet: weights may come from a
            saved pipeline, which then needs no source.
        """
        if self._model is not None:
            config: BiLMConfig = self._model.config
            return config
        from ..weights.native import read_config

        try:
            return read_config(self._directory)
        except (ElmoError, OSError):
            return None

    def predict(self, fwd_args: tuple[Sequence[Sequence[str]], int]) -> torch.Tensor:
        """Run sentences through the biLM.

        fwd_args (tuple): The words of each sentence, and the words that may run at the same time.
        RETURNS (Tensor): float32, (words, layers, width), the sentences one after another, on the biLM's device.
        """
        import torch

        sentences, max_batch_words = fwd_args
        with torch.inference_mode():
            layers: torch.Tensor = self.bilm(sentences, max_batch_words=max_batch_words).layers
        return layers

    def __call__(self, inputs: Any, is_train: bool) -> tuple[torch.Tensor, Callable[[Any], list[Any]]]:
        return self.predict(inputs), _no_gradient

    def finish_update(self, optimizer: Any) -> None:
        """Do nothing: the biLM is frozen."""

    @contextmanager
    def use_params(self, params: Any) -> Iterator[None]:
        """Change nothing: no optimizer keeps averages of frozen weights."""
        yield

    def to_device(self, device_type: str, device_id: int) -> None:
        """Move the biLM.

        device_type (str): "cpu" or "gpu", as Thinc's ops name it.
        device_id (int): Number of the GPU.
        """
        self.device = "cpu" if device_type == "cpu" else f"cuda:{device_id}"
        if self._model is not None:
            self._model.to(self.device)

    def to_bytes(self) -> bytes:
        """RETURNS (bytes): safetensors, with the config in the metadata."""
        from ..weights.native import bilm_to_bytes

        return bilm_to_bytes(self.bilm)

    def from_bytes(self, data: bytes) -> BiLMShim:
        """Take the weights from what `to_bytes` gave.

        RAISES (WeightsError): E1xx if the bytes are broken.
        """
        from ..weights.native import bilm_from_bytes

        self._model = self._prepare(lambda: bilm_from_bytes(data))
        return self

    def copy(self) -> BiLMShim:
        """RETURNS (BiLMShim): A shim with an id and with weights of its own."""
        copied = BiLMShim(self.source, self.initial_state)
        copied.device = self.device
        if self._model is not None:
            copied._model = copy.deepcopy(self._model)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> BiLMShim:
        return self.copy()

    def __getstate__(self) -> dict[str, Any]:
        weights = self.to_bytes() if self.is_loaded else None
        return {"source": self.source, "initial_state": self.initial_state, "weights": weights}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The id is new, and so is the device: another process may have another one.
        BiLMShim.__init__(self, state["source"], state["initial_state"])
        if state["weights"] is not None:
            self.from_bytes(state["weights"])

    @property
    def _directory(self) -> Path:
        return EMBEDDED_MODEL if self.source is None else self.source

    def _load(self) -> BiLM:
        from ..weights.native import load_bilm

        if not self._directory.is_dir():
            embedded = " (the model that comes with spacy-elmo)" if self.source is None else ""
            raise WeightsError(Errors.E302.format(source=f"{self._directory}{embedded}"))
        return load_bilm(self._directory)

    def _prepare(self, load: Callable[[], BiLM]) -> BiLM:
        import torch

        # Parameters that are made in the caller's inference mode could never be trained.
        with torch.inference_mode(False):
            bilm = load().requires_grad_(False).eval().to(self.device)
        if self.initial_state is not None and self.initial_state != bilm.config.initial_state:
            bilm.config = replace(bilm.config, initial_state=self.initial_state)  # type: ignore[arg-type]
            bilm.clear_caches()
        return bilm


def _no_gradient(d_outputs: Any) -> list[Any]:
    """Backpropagation of a frozen model: words have no gradient, and the weights want none."""
    return []
