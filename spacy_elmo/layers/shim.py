"""The bridge between Thinc and the biLM: where its weights come from, where they live, how they are trained and kept.

Thinc's own PyTorchShim flips the module between train and eval mode in every prediction (unsafe with threads), keeps
its id when copied (two copies then share an optimizer's moments), does not find the averages that the optimizer keeps, and
reads pickled weights. This one does not.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinc.shims.shim import Shim
from thinc.util import get_torch_default_device, torch2xp, xp2torch

from ..errors import ElmoError, Errors, TrainingError, WeightsError
from ..lm.locks import ForkSafeLock
from ..weights.embedded import EMBEDDED_MODEL
from .checks import is_number, require

if TYPE_CHECKING:
    import torch

    from ..lm.bilm import BiLM
    from ..lm.config import BiLMConfig
    from ..weights.source import Source

_require = partial(require, "a biLM in training")

logger = logging.getLogger("spacy_elmo")

_LOADING = ForkSafeLock()


@dataclass(frozen=True)
class FineTuning:
    """How a biLM is trained along with the components that read it.

    lr_scale (float | tuple): Factor of the optimizer's learning rate, for all layers or for each, layer 0, the word encoder,
        first.
    max_grad_norm (float | None): Bound of the norm of the gradient of all weights together; None for no bound.
    bfloat16 (bool): Run matrix products of the training in bfloat16, where the biLM is on a GPU that has it.
    RAISES (ConfigError): E300 if a setting cannot be.
    """

    lr_scale: float | Sequence[float] = 1.0
    max_grad_norm: float | None = 1.0
    bfloat16: bool = False

    def __post_init__(self) -> None:
        fits = all(is_number(factor) and factor >= 0 for factor in self._factors())
        _require("lr_scale", self.lr_scale, fits, "a number from 0 up, or one for each layer, layer 0 first")
        fits = self.max_grad_norm is None or (is_number(self.max_grad_norm) and self.max_grad_norm > 0)
        _require("max_grad_norm", self.max_grad_norm, fits, "a number above 0, or null for no bound")
        _require("bfloat16", self.bfloat16, isinstance(self.bfloat16, bool), "true or false")

    def lr_scale_of(self, layer: int, n_layers: int) -> float:
        """RETURNS (float): The factor of a layer of a biLM with so many.

        RAISES (ConfigError): E300 if there is not one factor for each layer.
        """
        factors = self._factors()
        if not isinstance(self.lr_scale, Sequence):
            return factors[0]
        expected = f"{n_layers} numbers, one for each layer of the biLM, or a single one"
        _require("lr_scale", self.lr_scale, len(factors) == n_layers, expected)
        return factors[layer]

    def _factors(self) -> list[float]:
        return list(self.lr_scale) if isinstance(self.lr_scale, Sequence) else [self.lr_scale]


class BiLMShim(Shim):
    """Hold a biLM. Weights are loaded at first use, by one thread.

    It is frozen unless `fine_tuning` is set: prediction only, no gradients. Then the layers from `lowest_trained` up are trained;
    from the first update on, their weights require gradients, and so are kept out of the caches of the biLM, which could not
    tell when an optimizer changes them.

    source (str | Path | Sequence | None): See `weights.source`; None for the embedded model. It is read only if the weights
        have not come from bytes or from a saved pipeline before.
    initial_state (str | None): Where sentences start, in place of what the weights' own config says.

    `owner` is what an error calls the one whose biLM this is.
    """

    def __init__(self, source: Source | None = None, initial_state: str | None = None) -> None:
        super().__init__(None)
        self.source = source
        self.initial_state = initial_state
        self.fine_tuning: FineTuning | None = None
        self.lowest_trained = 0
        self.owner = "a biLM"
        self._fingerprint: tuple[list[tuple[int, int]], str] | None = None
        self.device = str(get_torch_default_device())

    @property
    def bilm(self) -> BiLM:
        """The biLM, loaded if need be.

        RAISES (WeightsError): E1xx if no weights were loaded yet and cannot be from the source; E302 if the embedded model is gone.
        """
        if self._model is None:
            with _LOADING.held():
                if self._model is None:
                    self._model = self._prepare(lambda: _load_from(self.source))
        model: BiLM = self._model
        return model

    @bilm.setter
    def bilm(self, bilm: BiLM) -> None:
        self._model = self._prepare(lambda: bilm)

    def load(self, source: Source) -> None:
        """Take the weights from somewhere else.

        source (str | Path | Sequence): See `weights.source`.
        RAISES (WeightsError): E1xx if it has none that can be read.
        """
        self._model = self._prepare(lambda: _load_from(source))

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

        source = EMBEDDED_MODEL if self.source is None else self.source
        if not isinstance(source, (str, Path)):
            return None
        try:
            return read_config(source)
        except (ElmoError, OSError):
            return None

    def fingerprint(self) -> str:
        """RETURNS (str): The name of the weights; two biLMs of the same name give the same vectors.

        RAISES (WeightsError): E1xx, E302 if there are no weights.
        """
        from ..weights.fingerprint import fingerprint

        bilm = self.bilm
        version = [(weight.data_ptr(), weight._version) for weight in bilm.parameters()]
        known = self._fingerprint
        if known is None or known[0] != version:
            known = self._fingerprint = (version, fingerprint(bilm))
        return known[1]

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
        return self.begin_update(inputs) if is_train else (self.predict(inputs), _no_gradient)

    def begin_update(self, fwd_args: Any) -> tuple[torch.Tensor, Callable[[Any], list[Any]]]:
        """Run sentences through the biLM and keep the graph, unless it is frozen.

        fwd_args (tuple): As for `predict`.
        RETURNS (tuple[Tensor, Callable]): As `predict`, without the graph, and what takes the gradient, an array of numpy or
            cupy of the same shape, back to the weights.
        """
        import torch

        if self.fine_tuning is None:
            return self.predict(fwd_args), _no_gradient
        sentences, max_batch_words = fwd_args
        bilm = self.bilm
        for name, parameter in bilm.named_parameters():
            parameter.requires_grad_(layer_of(name) >= self.lowest_trained)
        with torch.inference_mode(False), torch.enable_grad(), self._autocast():
            layers: torch.Tensor = bilm(sentences, max_batch_words=max_batch_words).layers

        def backprop(d_layers: Any) -> list[Any]:
            if layers.requires_grad:
                layers.backward(xp2torch(d_layers, device=layers.device))
            return []

        return layers.detach(), backprop

    def finish_update(self, optimizer: Any) -> None:
        """Make a step with the gradients that have come together, after bringing their norm below its bound.

        optimizer (Optimizer): Thinc's.
        RAISES (TrainingError): E313 if a gradient is not finite.
        """
        import torch

        settings = self.fine_tuning
        if settings is None or self._model is None:
            return
        trained = [(name, weight) for name, weight in self._model.named_parameters() if weight.grad is not None]
        if not trained:
            return
        bound = float("inf") if settings.max_grad_norm is None else settings.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_([weight for _, weight in trained], bound)
        if not torch.isfinite(norm):
            raise TrainingError(Errors.E313.format(owner=self.owner, value=float(norm)))
        for name, weight in trained:
            scale = settings.lr_scale_of(layer_of(name), self._model.config.n_outputs)
            # Not all that spaCy passes for an optimizer takes a scale.
            extra = {} if scale == 1.0 else {"lr_scale": scale}
            values, gradient = torch2xp(weight.detach()), torch2xp(weight.grad)
            values, _ = optimizer((self.id, name), values, gradient, **extra)
            with torch.no_grad():
                weight.copy_(xp2torch(values, device=weight.device))
            weight.grad = None

    @contextmanager
    def use_params(self, params: Any) -> Iterator[None]:
        """Let weights that are trained have other values for a while, such as their averages.

        params (dict): From (id of this shim, name of the weight) to values.
        """
        import torch

        is_trained = self._model is not None and self.fine_tuning is not None
        weights = dict(self._model.named_parameters()) if is_trained else {}
        found = {name: weight for name, weight in weights.items() if (self.id, name) in (params or {})}
        backup = {name: weight.detach().clone() for name, weight in found.items()}
        try:
            with torch.no_grad():
                for name, weight in found.items():
                    weight.copy_(xp2torch(params[self.id, name], device=weight.device))
            yield
        finally:
            with torch.no_grad():
                for name, weight in found.items():
                    weight.copy_(backup[name])

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
        copied.fine_tuning, copied.lowest_trained = self.fine_tuning, self.lowest_trained
        copied.device = self.device
        if self._model is not None:
            copied._model = copy.deepcopy(self._model)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> BiLMShim:
        return self.copy()

    def __getstate__(self) -> dict[str, Any]:
        weights = self.to_bytes() if self.is_loaded else None
        kept = ("source", "initial_state", "fine_tuning", "lowest_trained")
        return {**{name: getattr(self, name) for name in kept}, "weights": weights}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The id is new, and so is the device: another process may have another one.
        BiLMShim.__init__(self, state["source"], state["initial_state"])
        self.fine_tuning, self.lowest_trained = state["fine_tuning"], state["lowest_trained"]
        if state["weights"] is not None:
            self.from_bytes(state["weights"])

    def _autocast(self) -> AbstractContextManager[Any]:
        import torch

        device = torch.device(self.device)
        wanted = self.fine_tuning is not None and self.fine_tuning.bfloat16
        if wanted and device.type == "cuda" and torch.cuda.is_bf16_supported():
            return torch.autocast(device.type, dtype=torch.bfloat16)
        return nullcontext()

    def _prepare(self, load: Callable[[], BiLM]) -> BiLM:
        import torch

        self._fingerprint = None
        # Parameters that are made in the caller's inference mode could never be trained.
        with torch.inference_mode(False):
            bilm = load().requires_grad_(False).eval().to(self.device)
        if self.initial_state is not None and self.initial_state != bilm.config.initial_state:
            bilm.config = replace(bilm.config, initial_state=self.initial_state)  # type: ignore[arg-type]
            bilm.clear_caches()
        return bilm


def _load_from(source: Source | None) -> BiLM:
    from ..weights.formats import load_model

    if source is None and not EMBEDDED_MODEL.is_dir():
        raise WeightsError(Errors.E302.format(path=EMBEDDED_MODEL))
    model = load_model(EMBEDDED_MODEL if source is None else source)
    for note in model.notes:
        logger.info("%s: %s", source, note)
    return model.bilm


def layer_of(name: str) -> int:
    """RETURNS (int): The layer that a weight of a biLM belongs to: 0 for the word encoder, l for the LSTM layer l of a direction."""
    room, _, rest = name.partition(".")
    return int(rest.split(".")[0]) + 1 if room in ("forward_lm", "backward_lm") else 0


def _no_gradient(d_outputs: Any) -> list[Any]:
    """Backpropagation of a frozen model: words have no gradient, and the weights want none."""
    return []
