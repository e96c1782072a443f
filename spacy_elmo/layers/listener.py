"""The layer by which a component of the pipeline reads ELMo from the elmo pipe before it, with a mix of its own.

In `update`, the elmo pipe runs first and keeps the layers of the batch; each listener takes them and, unless the biLM is
frozen, gives their gradient back. In prediction the components see batches of their own, so that layers wait at their Doc
(see `handover`). What is not there, since the elmo pipe is disabled or did not see this Doc, the listener has the elmo pipe
compute: it never gives zeros in place of layers. A listener that was never linked to an elmo pipe is an error.

A listener knows its elmo pipe by a `Link`, which `Elmo.find_listeners` sets whenever spaCy links the components.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import srsly
from spacy.tokens import Doc
from spacy.util import registry
from thinc.api import Linear, Model, chain, deserialize_attr, serialize_attr, with_array
from thinc.types import Floats2d, Floats3d

from ..errors import ElmoWarning, Errors, PipelineError, TrainingError, Warnings
from .checks import is_number, require
from .handover import Handover, Ranges, hand_over, handovers, make_room
from .scalar_mix import build_scalar_mix, is_mix

_require = partial(require, "the architecture spacy_elmo.ElmoListener.v1")

Layers = list[Floats3d]
Tok2Vec = Model[list[Doc], list[Floats2d]]
BackpropLayers = Callable[[Layers], list[Doc]]

LISTENER = "spacy_elmo.ElmoListener.v1"

LINK = "elmo_link"
"""The attribute by which a node of a model is known for a listener."""


class Batch(Protocol):
    """What an elmo pipe keeps of a batch while its listeners are updated."""

    def take(self, docs: Sequence[Doc]) -> tuple[list[Floats3d | None], BackpropLayers]:
        """RETURNS (tuple): The layers of each Doc, None for one that is not of this batch, and where their gradient goes."""


class Upstream(Protocol):
    """What a listener needs of an elmo pipe."""

    name: str
    model: Model[list[Doc], Layers]
    batch: Batch | None
    listener_map: dict[str, list[Model[Any, Any]]]

    @property
    def listeners(self) -> list[Model[Any, Any]]:
        """All that listen."""

    def add_listener(self, listener: Model[Any, Any], component_name: str) -> None:
        """Count one more."""

    @property
    def has_weights(self) -> bool:
        """Whether the weights are in memory."""

    def warn_of_removal(self) -> None:
        """Say, once, if it is no longer in its pipeline."""

    def fingerprint(self) -> str:
        """RETURNS (str): The name of the weights."""

    def read(self, docs: Sequence[Doc], ranges: Sequence[Ranges | None]) -> tuple[Layers, list[Ranges]]:
        """RETURNS (tuple): The layers of Docs, and what was read as sequences: what was asked for, or what there are."""


class Link:
    """To which elmo pipe a listener listens. Thinc serializes of it which component it is in, and on which weights that
    was trained.

    upstream_name (str): Name of the elmo pipe, or "*" for any.
    """

    def __init__(self, upstream_name: str) -> None:
        self.upstream_name = upstream_name
        self.upstream: Upstream | None = None
        self.component: str | None = None
        self.weights: str | None = None
        self._has_learned = False
        self._is_checked = False

    def fits(self, upstream: Upstream) -> bool:
        """RETURNS (bool): Whether the name is that of this elmo pipe."""
        return self.upstream_name in ("*", upstream.name)

    def connect(self, upstream: Upstream, component: str) -> None:
        """Listen to an elmo pipe from now on.

        upstream (Upstream): The elmo pipe.
        component (str): Name of the component that the listener is in.
        """
        self.component = component
        if upstream is not self.upstream:
            self.note_other_weights()
            self.upstream = upstream
        if upstream.has_weights:
            self.check_weights()

    def require(self) -> Upstream:
        """RETURNS (Upstream): The elmo pipe.

        RAISES (PipelineError): E311 if there is none.
        """
        if self.upstream is None:
            component = _component_in_use(self) if self.component is None else self.component
            section = "" if component is None else f" ([components.{component}.model])"
            listener = "A listener" if component is None else f"The component {component!r}"
            error = Errors.E311.format(listener=listener, upstream=self.upstream_name, section=section)
            raise PipelineError(error)
        return self.upstream

    def note_other_weights(self) -> None:
        """Note on which weights the component was trained, for others take their place now."""
        self.weights = self.trained_on()
        self._has_learned = self._is_checked = False

    def note_learning(self) -> None:
        """Note that the component learns from the weights as they are now."""
        self._has_learned = self._is_checked = True

    def trained_on(self) -> str | None:
        """RETURNS (str | None): Fingerprint of the weights on which the component was trained, if it was."""
        if self._has_learned and self.upstream is not None:
            return self.upstream.fingerprint()
        return self.weights

    def check_weights(self) -> None:
        """Warn, once, with W301 if the component was trained on other weights."""
        if self._is_checked or self.upstream is None:
            return
        self._is_checked = True
        if self.weights is not None and self.weights != self.upstream.fingerprint():
            message = Warnings.W301.format(component=self.component, upstream=self.upstream.name)
            warnings.warn(message, ElmoWarning, stacklevel=2)

    def __deepcopy__(self, memo: dict[int, Any]) -> Link:
        # A copy of the whole pipeline listens to the copy of the elmo pipe, a copy of the model to the same elmo pipe.
        copied = Link.__new__(Link)
        copied.__dict__.update(self.__dict__)
        copied.upstream = memo.get(id(self.upstream), self.upstream)
        return copied


@serialize_attr.register(Link)
def _serialize_link(_: Link, link: Link, name: str, model: Model[Any, Any]) -> bytes:
    data: bytes = srsly.msgpack_dumps({"component": link.component, "weights": link.trained_on()})
    return data


@deserialize_attr.register(Link)
def _deserialize_link(link: Link, data: bytes, name: str, model: Model[Any, Any]) -> Link:
    saved = srsly.msgpack_loads(data)
    link.component, link.weights = saved["component"], saved["weights"]
    link._has_learned = link._is_checked = False
    return link


def listeners_of(component: Any) -> Iterator[tuple[Model[Any, Any], Link]]:
    """The listeners in the model of a component of a pipeline.

    component (Any): The component; one without a model has none.
    YIELDS (tuple[Model, Link]): The layer and its link.
    """
    model = getattr(component, "model", None)
    for node in model.walk() if isinstance(model, Model) else ():
        link = node.attrs.get(LINK)
        if isinstance(link, Link):
            yield node, link


def note_components(components: Iterable[tuple[str, Any]]) -> None:
    """Tell listeners and mixes which component they are in, for the case that an error has to say it.

    components (Iterable[tuple[str, Any]]): Names and components of a pipeline.
    """
    for name, component in components:
        for _, link in listeners_of(component):
            link.component = name
        model = getattr(component, "model", None)
        for node in model.walk() if isinstance(model, Model) else ():
            if is_mix(node):
                node.attrs["component"] = name


def _component_in_use(link: Link) -> str | None:
    """Name the component that spaCy is about to run or to initialize, if the listener is in it. Where there never was an elmo
    pipe, only spaCy's own loops over the pipeline know."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        name, component = frame.f_locals.get("name"), frame.f_locals.get("proc")
        if isinstance(name, str) and any(each is link for _, each in listeners_of(component)):
            return name
    return None


def tell_width(model: Model[Any, Any], upstream: Upstream) -> None:
    """Tell those layers of a component their width that must know it before they run: the entity linker's residual one, which
    would take its width from what the component gives. spaCy made them before the width of the biLM was known.

    model (Model): The model of a component.
    upstream (Upstream): The elmo pipe to which its tok2vec listens, without a projection.
    """
    tok2vec = model.maybe_get_ref("tok2vec")
    if tok2vec is None or not tok2vec.layers or LINK not in tok2vec.layers[0].attrs or tok2vec.has_dim("nO"):
        return
    for node in model.walk():
        for layer in node.walk() if node.name.startswith("residual") else ():
            for dim in ("nI", "nO"):
                if layer.has_dim(dim) is None:
                    layer.set_dim(dim, upstream.model.get_dim("nO"))


@registry.architectures("spacy_elmo.ElmoListener.v1")  # type: ignore[untyped-decorator]
def build_elmo_listener(
    upstream: str = "elmo",
    width: int | None = None,
    layer: int | None = None,
    layer_norm: str = "none",
    layer_dropout: float = 0.0,
    dropout: float = 0.5,
    l2: float = 0.001,
    gamma: float = 1.0,
) -> Tok2Vec:
    """Listen to an elmo pipe earlier in the pipeline and mix its layers with weights that are learned with the component
    (Peters et al. 2018, equation 1). For the `tok2vec` of spaCy's own architectures.

    upstream (str): Name of the elmo pipe, or "*" for any.
    width (int | None): Project the mix to this width. Default: no projection; the width is that of the biLM.
    layer (int | None): Take this layer alone, 0 being the one without context. Default: a learned mix of all.
    layer_norm (str): "none"; "token": normalize each layer of each token; "batch": the original's option, with one mean and
        one variance for each layer and batch, so that results depend on the batch.
    layer_dropout (float): Chance for each layer to be left out of the mix in an update.
    dropout (float): Chance for each value of the mix to be dropped in an update. The dropout of the training, which spaCy sets
        for all layers, does not change it.
    l2 (float): How strongly the mix is pulled towards the average of the layers.
    gamma (float): Where the common factor of the mix starts.
    RETURNS (Model[list[Doc], list[Floats2d]]): The layer.
    RAISES (ConfigError): E300 if a setting cannot be.
    """
    listener: Model[list[Doc], Layers] = Model(
        "elmo_listener", _forward, init=_init, dims={"nO": None, "nL": None}, attrs={LINK: Link(upstream)}
    )
    mix = build_scalar_mix(gamma=gamma, layer=layer, layer_norm=layer_norm, layer_dropout=layer_dropout, l2=l2)
    return mixed_and_projected(listener, mix, dropout, width)


def mixed_and_projected(
    source: Model[list[Doc], Layers], mix: Model[Layers, list[Floats2d]], dropout: float, width: int | None
) -> Tok2Vec:
    """What a component reads of ELMo.

    source (Model[list[Doc], list[Floats3d]]): Gives the layers.
    mix (Model[list[Floats3d], list[Floats2d]]): Mixes them.
    dropout, width: See `build_elmo_listener`.
    RETURNS (Model[list[Doc], list[Floats2d]]): The layer.
    RAISES (ConfigError): E300 if a setting cannot be.
    """
    _require("dropout", dropout, is_number(dropout) and 0 <= dropout < 1, "a number from 0 up and below 1")
    is_width = isinstance(width, int) and not isinstance(width, bool) and width >= 1
    _require("width", width, width is None or is_width, "a whole number from 1 up, or null for no projection")
    layers: list[Model[Any, Any]] = [source, mix, Model("elmo_dropout", partial(_drop, rate=dropout))]
    if width is not None:
        layers.append(with_array(Linear(nO=width)))
    model: Tok2Vec = chain(*layers)
    model.init = _init_mixed
    return model


def _init_mixed(model: Tok2Vec, X: list[Doc] | None = None, Y: object = None) -> None:
    """All widths are known from the biLM: neither examples nor a run of the biLM are needed."""
    source, *others = model.layers
    source.initialize()
    sample: Any = [model.ops.alloc3f(0, source.get_dim("nL"), source.get_dim("nO"))]
    for layer in others:
        sample = layer.initialize(X=sample).predict(sample)
    model.set_dim("nO", sample[0].shape[1])


def _init(model: Model[list[Doc], Layers], X: list[Doc] | None = None, Y: object = None) -> None:
    _fit(model, model.attrs[LINK].require())


def _forward(model: Model[list[Doc], Layers], docs: list[Doc], is_train: bool) -> tuple[Layers, BackpropLayers]:
    link: Link = model.attrs[LINK]
    upstream = link.require()
    _fit(model, upstream)
    link.check_weights()
    if link.component is not None and link.component not in upstream.listener_map:
        # spaCy does not link what is disabled, nor anew what is enabled again.
        upstream.add_listener(model, link.component)
    batch = upstream.batch if is_train else None
    layers, backprop = ([None] * len(docs), _no_gradient) if batch is None else batch.take(docs)
    if not is_train:
        return _complete(model, upstream, docs, layers), backprop
    link.note_learning()

    def backprop_finite(d_layers: Layers) -> list[Doc]:
        # One number for all, so that a GPU is waited for once.
        if not np.isfinite(float(sum(d_doc.sum(axis=None, keepdims=False) for d_doc in d_layers))):
            raise TrainingError(Errors.E316.format(component=link.component))
        return backprop(d_layers)

    return _complete(model, upstream, docs, layers), backprop_finite


def _fit(model: Model[list[Doc], Layers], upstream: Upstream) -> None:
    """Take the widths over from the elmo pipe, or see that they are still the same."""
    if not upstream.model.has_dim("nO"):
        # Neither the weights nor their config have been seen: they have to be loaded now.
        upstream.read([], [])
    given = {name: upstream.model.get_dim(name) for name in ("nO", "nL")}
    expected = {name: model.maybe_get_dim(name) or size for name, size in given.items()}
    if expected != given:
        names = {"component": model.attrs[LINK].component, "upstream": upstream.name}
        widths = {"expected_width": expected["nO"], "given_width": given["nO"]}
        layers = {"expected_layers": expected["nL"], "given_layers": given["nL"]}
        raise PipelineError(Errors.E312.format(**names, **widths, **layers))
    for name, size in given.items():
        model.set_dim(name, size)


def _complete(
    model: Model[list[Doc], Layers], upstream: Upstream, docs: Sequence[Doc], layers: Sequence[Floats3d | None]
) -> Layers:
    """The layers of all Docs: those given, those that wait for us, and the others computed by the elmo pipe."""
    complete = dict(enumerate(layers))
    missing: dict[Upstream, list[tuple[int, Ranges | None]]] = {}
    for index, doc in enumerate(docs):
        if complete[index] is None:
            handover = _handover(model, upstream, doc)
            complete[index] = None if handover is None else handover.take()
            if complete[index] is None:
                source = upstream if handover is None else handover.upstream
                missing.setdefault(source, []).append((index, None if handover is None else handover.ranges))
    for source, places in missing.items():
        found, ranges = source.read([docs[index] for index, _ in places], [known for _, known in places])
        for (index, known), computed, new in zip(places, found, ranges):
            complete[index] = computed
            if known is None:
                hand_over(source, docs[index], new, computed, uses=len(source.listeners) - 1)
        source.warn_of_removal()
    if missing:
        make_room()
    return [cast(Floats3d, complete[index]) for index in range(len(docs))]


def _handover(model: Model[list[Doc], Layers], upstream: Upstream, doc: Doc) -> Handover | None:
    """What was left at a Doc by our elmo pipe or, for a component shared by pipelines, by that of the other pipeline."""
    found = [each for each in handovers(doc) if each.upstream is upstream]
    if not found:
        found = [each for each in handovers(doc) if each.upstream is not None and model in each.upstream.listeners]
    return found[-1] if found else None


def _drop(
    model: Model[list[Floats2d], list[Floats2d]], vectors: list[Floats2d], is_train: bool, *, rate: float
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Floats2d]]]:
    """Thinc's dropout, at a rate that spaCy does not overwrite with that of the training."""
    if not is_train or rate == 0:
        return vectors, _unchanged
    masks = [model.ops.get_dropout_mask(each.shape, rate) for each in vectors]

    def backprop(d_vectors: list[Floats2d]) -> list[Floats2d]:
        return [each * mask for each, mask in zip(d_vectors, masks)]

    return [each * mask for each, mask in zip(vectors, masks)], backprop


def _unchanged(d_vectors: list[Floats2d]) -> list[Floats2d]:
    return d_vectors


def _no_gradient(d_layers: Layers) -> list[Doc]:
    """Nothing upstream learns from this batch."""
    return []
