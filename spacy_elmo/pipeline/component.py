"""The spaCy component: Docs in, Docs with ELMo vectors out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import srsly
from spacy import util
from spacy.language import Language
from spacy.pipeline.trainable_pipe import TrainablePipe
from spacy.tokens import Doc
from spacy.training import Example, validate_examples
from spacy.vocab import Vocab
from thinc.api import Model, Optimizer
from thinc.types import Floats2d, Floats3d

from .. import __version__
from ..errors import ConfigError, Errors, PipelineError
from ..layers.bilm_model import bilm_shim, embed, sync_dims
from ..layers.scalar_mix import build_scalar_mix
from . import attributes, forking  # noqa: F401

if TYPE_CHECKING:
    from ..lm.bilm import BiLM

STORES = ("mixed", "layers", "none")

FLOAT32_MAX = 3.4e38

BATCHES_IN_MEMORY = 4
"""How many times `max_batch_words` words have their layers in memory at once: room to sort sentences by length."""


class DocVectors(NamedTuple):
    """What is predicted for a Doc.

    mixed (Floats2d): float32, (tokens, width).
    layers (Floats3d | None): float32, (tokens, layers, width), if they are stored.
    """

    mixed: Floats2d
    layers: Floats3d | None


class Elmo(TrainablePipe):  # type: ignore[misc]
    """Give every token of a Doc its ELMo vector: `token._.elmo`, `span._.elmo`, `doc._.elmo`, `doc.tensor`.

    The component is ready at once, without `initialize`. It keeps nothing from one Doc to the next, so that a text has
    the same vectors alone, in any batch and in any order; it may be shared by threads. Of two such pipes, the last one
    writes.

    vocab (Vocab): The shared vocabulary.
    model (Model[list[Doc], list[Floats3d]]): From `spacy_elmo.BiLM.v1`.
    name (str): Name of this pipe.
    layer_weights, gamma, store, half, frozen: See `factory.make_elmo`.
    RAISES (ConfigError): E300, E301 if a setting cannot be. (PipelineError): E306 if another extension has our name.
    """

    def __init__(
        self,
        vocab: Vocab,
        model: Model[list[Doc], list[Floats3d]],
        name: str = "elmo",
        *,
        layer_weights: Sequence[float] | int | None = None,
        gamma: float = 1.0,
        store: str = "mixed",
        half: bool = False,
        frozen: bool = True,
    ) -> None:
        self.vocab = vocab
        self.model = model
        self.name = name
        self.cfg: dict[str, Any] = {}
        self.layer_weights = layer_weights
        self.gamma = gamma
        self.store = store
        self.half = half
        self._mix: Model[list[Floats3d], list[Floats2d]] | None = None
        _require(name, "store", store, store in STORES, f"one of {STORES}")
        _require(name, "gamma", gamma, _is_number(gamma), "a number that float32 can hold")
        _require(name, "half", half, isinstance(half, bool), "true or false")
        if not frozen:
            raise ConfigError(Errors.E301.format(name=name))
        attributes.register()
        if model.has_dim("nO"):
            self._ensure_mix()
            attributes.note_width(model.get_dim("nO"))

    @property
    def bilm(self) -> BiLM:
        """The biLM; its weights are loaded if need be.

        RAISES (WeightsError): E302 if there are none, E1xx if they are broken.
        """
        return bilm_shim(self.model).bilm

    @property
    def mix(self) -> Model[list[Floats3d], list[Floats2d]]:
        """The scalar mix behind `token._.elmo`."""
        if not self.model.has_dim("nL"):
            # Neither the weights nor their config have been seen: they have to be loaded now.
            bilm_shim(self.model).bilm
            sync_dims(self.model)
        return self._ensure_mix()

    def predict(self, docs: Iterable[Doc]) -> list[DocVectors]:
        """Compute the vectors of Docs, without changing them.

        docs (Iterable[Doc]): The Docs.
        RETURNS (list[DocVectors]): For each Doc, in order.
        RAISES (WeightsError): E302 if there are no weights.
        """
        docs = list(docs)
        mix = self.mix
        if self.store == "layers":
            layers = self.model.predict(docs)
            return [DocVectors(*pair) for pair in zip(mix.predict(layers), layers)]
        mixed = embed(self.model, docs, lambda words: mix.predict([words])[0])
        return [DocVectors(cast(Floats2d, vectors), None) for vectors in mixed]

    def set_annotations(self, docs: Iterable[Doc], scores: Sequence[DocVectors]) -> None:
        """Write vectors to Docs. Arrays come to lie in main memory, and each Doc owns its own.

        docs (Iterable[Doc]): The Docs.
        scores (Sequence[DocVectors]): What `predict` gave for them.
        """
        if self.store == "none":
            return
        to_numpy: Callable[[Any], Any] = self.model.ops.to_numpy
        for doc, (mixed, layers) in zip(docs, scores):
            kept = None if layers is None else to_numpy(layers)
            attributes.annotate(doc, to_numpy(mixed), kept, half=self.half)

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Annotate a stream of Docs, in order.

        Batches have at most `batch_size` Docs and, unless one Doc alone has more, a bounded number of words, so that
        the memory in use does not grow with the length of the Docs.

        stream (Iterable[Doc]): The Docs.
        batch_size (int): Docs to buffer.
        YIELDS (Doc): The annotated Docs.
        """
        handle_error = self.get_error_handler()
        words = BATCHES_IN_MEMORY * self.model.attrs["reading"].max_batch_words
        for buffered in util.minibatch(stream, size=batch_size):  # type: ignore[no-untyped-call]
            for docs in _split_by_words(buffered, words):
                try:
                    self.set_annotations(docs, self.predict(docs))
                    yield from docs
                except Exception as error:  # spaCy lets the user decide what to do with any error
                    handle_error(self.name, self, docs, error)

    def initialize(self, get_examples: Callable[[], Iterable[Example]], *, nlp: Language | None = None) -> None:
        """Load the weights now instead of at first use. Nothing else needs initialization, and no examples are read.

        get_examples (Callable): Not used.
        nlp (Language | None): Not used.
        RAISES (WeightsError): E302 if there are no weights.
        """
        self.mix
        self.bilm

    def update(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optimizer | None = None,
        losses: dict[str, float] | None = None,
    ) -> dict[str, float]:
        """Learn nothing: the biLM is frozen.

        examples (Iterable[Example]): Checked, not changed.
        drop (float): Not used.
        sgd (Optimizer | None): Not used.
        losses (dict[str, float] | None): Losses of the pipeline; this pipe adds 0.
        RETURNS (dict[str, float]): The losses.
        """
        losses = {} if losses is None else losses
        validate_examples(examples, "Elmo.update")
        losses.setdefault(self.name, 0.0)
        return losses

    def finish_update(self, sgd: Optimizer) -> None:
        """Change nothing: the biLM is frozen."""

    def add_label(self, label: str) -> int:
        """RAISES (PipelineError): E307; this pipe has no labels."""
        raise PipelineError(Errors.E307.format(name=self.name, label=label))

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """Serialize the component, its weights included.

        exclude (Iterable[str]): What to leave out: "cfg", "vocab", "bilm".
        RETURNS (bytes): The serialized component.
        """
        parts = {
            "cfg": lambda: srsly.json_dumps(self._description()),
            "vocab": lambda: self.vocab.to_bytes(exclude=exclude),
            "bilm": bilm_shim(self.model).to_bytes,
        }
        return util.to_bytes(parts, exclude)

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> Elmo:
        """Take over what `to_bytes` gave. The settings stay those of this component's config.

        bytes_data (bytes): The serialized component.
        exclude (Iterable[str]): What to leave out: "cfg", "vocab", "bilm".
        RETURNS (Elmo): This component.
        """
        parts: dict[str, Callable[[bytes], Any]] = {
            "cfg": lambda data: self.cfg.update(srsly.json_loads(data)),
            "vocab": lambda data: self.vocab.from_bytes(data, exclude=exclude),
            "bilm": bilm_shim(self.model).from_bytes,
        }
        util.from_bytes(bytes_data, parts, exclude)
        self._take_new_weights()
        return self

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        """Save the component. The weights go to `bilm/`, a native weights directory that any tool of ours can read.

        path (str | Path): A directory.
        exclude (Iterable[str]): What to leave out: "cfg", "vocab", "bilm".
        """
        parts = {
            "cfg": lambda file: srsly.write_json(file, self._description()),
            "vocab": lambda directory: self.vocab.to_disk(directory, exclude=exclude),
            "bilm": self._save_weights,
        }
        util.to_disk(path, parts, exclude)

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> Elmo:
        """Load what `to_disk` saved; the source of the weights is not needed again. The settings stay those of this
        component's config.

        path (str | Path): The directory.
        exclude (Iterable[str]): What to leave out: "cfg", "vocab", "bilm".
        RETURNS (Elmo): This component.
        RAISES (WeightsError): E1xx if the weights are missing or broken.
        """
        parts: dict[str, Callable[[Path], Any]] = {
            "cfg": lambda file: self.cfg.update(srsly.read_json(file)),
            "vocab": lambda directory: self.vocab.from_disk(directory, exclude=exclude),
            "bilm": self._load_weights,
        }
        util.from_disk(path, parts, exclude)
        self._take_new_weights()
        return self

    def _description(self) -> dict[str, Any]:
        """What made this file; the settings themselves are in the config of the pipeline."""
        config = bilm_shim(self.model).peek_config()
        width, layers = (None, None) if config is None else (config.width, config.n_outputs)
        return {"spacy_elmo": __version__, "width": width, "layers": layers}

    def _save_weights(self, directory: Path) -> None:
        from ..weights.native import save_bilm

        bilm = self.bilm
        # Weights that came in half precision go out in half precision; nothing is lost.
        half = all(bool((p == p.half()).all()) for p in bilm.parameters())
        save_bilm(bilm, directory, half=half)

    def _load_weights(self, directory: Path) -> None:
        from ..weights.native import load_bilm

        bilm_shim(self.model).bilm = load_bilm(directory)

    def _take_new_weights(self) -> None:
        sync_dims(self.model)
        self._mix = None
        if self.model.has_dim("nL"):
            self._ensure_mix()

    def _ensure_mix(self) -> Model[list[Floats3d], list[Floats2d]]:
        n_layers = self.model.get_dim("nL")
        mix = self._mix
        if mix is None:
            shares = _layer_shares(self.name, self.layer_weights, n_layers)
            mix = self._mix = build_scalar_mix(shares, self.gamma, trainable=False)
        return mix


def _is_number(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(cast(float, value)) <= FLOAT32_MAX


def _layer_shares(name: str, layer_weights: Sequence[float] | int | None, n_layers: int) -> list[float]:
    if layer_weights is None:
        return [1.0] * n_layers
    if isinstance(layer_weights, (bool, float, str)):
        _require(name, "layer_weights", layer_weights, False, "null, one number for each layer, or one whole number")
    if isinstance(layer_weights, int):
        expected = f"a layer from 0 to {n_layers - 1}, for the biLM has {n_layers} layers"
        _require(name, "layer_weights", layer_weights, 0 <= layer_weights < n_layers, expected)
        return [float(layer == layer_weights) for layer in range(n_layers)]
    shares = [float(share) for share in layer_weights]
    fits = len(shares) == n_layers and min(shares) >= 0 and 0 < sum(shares) < math.inf
    expected = f"{n_layers} numbers from 0 up, one for each layer of the biLM, not all of them 0"
    _require(name, "layer_weights", layer_weights, fits, expected)
    return shares


def _split_by_words(docs: Sequence[Doc], words: int) -> Iterator[list[Doc]]:
    """Batches of at most so many tokens; a longer Doc makes a batch of its own."""
    batch: list[Doc] = []
    size = 0
    for doc in docs:
        if batch and size + len(doc) > words:
            yield batch
            batch, size = [], 0
        batch.append(doc)
        size += len(doc)
    if batch:
        yield batch


def _require(owner: str, name: str, value: object, condition: bool, expected: str) -> None:
    if not condition:
        owner = f"the elmo pipe {owner!r}"
        raise ConfigError(Errors.E300.format(name=name, owner=owner, value=value, expected=expected))
