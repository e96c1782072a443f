"""The spaCy component: Docs in, Docs with ELMo vectors out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from spacy import util
from spacy.language import Language
from spacy.pipeline.trainable_pipe import TrainablePipe
from spacy.tokens import Doc
from spacy.training import Example, validate_examples
from spacy.vocab import Vocab
from thinc.api import Model, Optimizer
from thinc.types import Floats2d, Floats3d

from ..errors import ElmoWarning, Errors, PipelineError, Warnings
from ..layers.bilm_model import bilm_shim, embed, read_ranges, run_words, sync_dims
from ..layers.handover import Ranges, hand_over, make_room
from ..layers.own_elmo import ReplaceListenerConfig, replace_listener
from ..layers.scalar_mix import build_scalar_mix
from ..layers.shim import FineTuning
from . import attributes, forking  # noqa: F401
from .checks import is_number, layer_shares, require
from .listening import ListenedTo, sentence_setters
from .saving import Saved
from .sentences import SentenceSpans
from .training import UpdateBatch

if TYPE_CHECKING:
    from ..lm.bilm import BiLM
    from .feature_cache import FeatureCache

STORES = ("mixed", "layers", "none")

BATCHES_IN_MEMORY = 4
"""How many times `max_batch_words` words have their layers in memory at once: room to sort sentences by length."""


class DocVectors(NamedTuple):
    """What is predicted for a Doc.

    mixed (Floats2d): float32, (tokens, width).
    layers (Floats3d | None): float32, (tokens, layers, width), if they are stored or listened to.
    ranges (list[tuple[int, int]] | None): Tokens from … to … of each sequence that was read, if the layers are there.
    surprisal (ndarray | None): float32, (tokens, 2), in bits, if the pipe tells it.
    """

    mixed: Floats2d
    layers: Floats3d | None
    ranges: Ranges | None
    surprisal: Any = None


class Elmo(ListenedTo, Saved, TrainablePipe):  # type: ignore[misc]
    """Give every token of a Doc its ELMo vector: `token._.elmo`, `span._.elmo`, `doc._.elmo`, `doc.tensor`.

    The component is ready at once, without `initialize`. It keeps nothing from one Doc to the next, so that a text has
    the same vectors alone, in any batch and in any order; it may be shared by threads. Of two such pipes, the last one
    writes.

    Components with a `spacy_elmo.ElmoListener.v1` learn from its layers. Unless it is frozen, their gradients train its biLM,
    once a batch. `nlp.update(sgd=…)` asks for the step before there is a gradient: it is made when the last listener has given
    its own or, if one gives none, before the weights are used next.

    vocab (Vocab): The shared vocabulary.
    model (Model[list[Doc], list[Floats3d]]): From `spacy_elmo.BiLM.v1`.
    name (str): Name of this pipe.
    layer_weights, gamma, store, half: See `factory.make_elmo`.
    fine_tuning (FineTuning | None): How the biLM is trained; None if it is frozen.
    cache (FeatureCache | None): Remembers the layers of a frozen biLM from the first update on.
    RAISES (ConfigError): E300 if a setting cannot be. (PipelineError): E306 if another extension has our name.
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
        fine_tuning: FineTuning | None = None,
        cache: FeatureCache | None = None,
    ) -> None:
        self.vocab = vocab
        self.model = model
        self.name = name
        self.cfg: dict[str, Any] = {}
        self.listener_map = {}
        self.tensor_readers = set()
        self.batch: UpdateBatch | None = None
        self.layer_weights = layer_weights
        self.gamma = gamma
        self.store = store
        self.half = half
        self._mix: Model[list[Floats3d], list[Floats2d]] | None = None
        self._cache = cache
        self._is_training = False
        self._sentence_setters: list[str] = []
        require(name, "store", store, store in STORES, f"one of {STORES}")
        require(name, "gamma", gamma, is_number(gamma), "a number that float32 can hold")
        require(name, "half", half, isinstance(half, bool), "true or false")
        bilm_shim(model).fine_tuning = fine_tuning
        model.attrs["replace_listener"] = replace_listener
        model.attrs["replace_listener_cfg"] = ReplaceListenerConfig(fine_tuning)
        attributes.register()
        if model.has_dim("nO"):
            self._ensure_mix()
            attributes.note_width(model.get_dim("nO"))

    @property
    def bilm(self) -> BiLM:
        """The biLM; its weights are loaded if need be.

        RAISES (WeightsError): E1xx, E302 if there are none, or they are broken.
        """
        self._settle()
        return bilm_shim(self.model).bilm

    @bilm.setter
    def bilm(self, bilm: BiLM) -> None:
        self.note_other_weights()
        bilm_shim(self.model).bilm = bilm
        self._forget_softmax()
        self._take_new_weights()

    @property
    def is_frozen(self) -> bool:
        """Whether the biLM stays as it is in training."""
        return bilm_shim(self.model).fine_tuning is None

    @property
    def has_weights(self) -> bool:
        """Whether the weights are in memory."""
        return bilm_shim(self.model).is_loaded

    def fingerprint(self) -> str:
        """RETURNS (str): The name of the weights. Two biLMs of the same name give the same vectors.

        RAISES (WeightsError): E1xx, E302 if there are no weights.
        """
        return bilm_shim(self.model).fingerprint()

    @property
    def mix(self) -> Model[list[Floats3d], list[Floats2d]]:
        """The scalar mix behind `token._.elmo`."""
        if not self.model.has_dim("nL"):
            # Neither the weights nor their config have been seen: they have to be loaded now.
            bilm_shim(self.model).bilm
            sync_dims(self.model)
        return self._ensure_mix()

    def read(
        self, docs: Sequence[Doc], ranges: Sequence[Ranges | None] | None = None
    ) -> tuple[list[Floats3d], list[Ranges]]:
        """Compute the layers of Docs, without changing them.

        docs (Sequence[Doc]): The Docs.
        ranges (Sequence | None): For each Doc the tokens from … to … of each sequence, or None for what there is now.
        RETURNS (tuple): (tokens, layers, width) for each Doc, and what was read as sequences.
        RAISES (WeightsError): E1xx, E302 if there are no weights.
        """
        known = dict(enumerate(ranges or ()))
        unknown = [index for index in range(len(docs)) if known.get(index) is None]
        known.update(zip(unknown, read_ranges(self.model, [docs[index] for index in unknown])))
        complete = [cast(Ranges, known[index]) for index in range(len(docs))]
        run = self._recall if self._cache is not None and self._is_training and self.is_frozen else None
        return cast(list[Floats3d], embed(self.model, docs, ranges=complete, run=run)), complete

    def predict(self, docs: Iterable[Doc]) -> list[DocVectors]:
        """Compute the vectors of Docs, without changing them.

        docs (Iterable[Doc]): The Docs.
        RETURNS (list[DocVectors]): For each Doc, in order.
        RAISES (WeightsError): E1xx, E302 if there are no weights.
        """
        docs = list(docs)
        self._settle(docs)
        if self.surprisal is None:
            return self._predict_vectors(docs)
        found = self.surprisal.of_docs(self.model, docs)
        return [vectors._replace(surprisal=each) for vectors, each in zip(self._predict_vectors(docs), found)]

    def _predict_vectors(self, docs: list[Doc]) -> list[DocVectors]:
        mix = self.mix
        if self.store != "layers" and not self.listeners:
            mixed = embed(self.model, docs, lambda words: mix.predict([words])[0])
            return [DocVectors(cast(Floats2d, vectors), None, None) for vectors in mixed]
        # An annotating pipe has just read these very Docs for its update.
        layers = None if self.batch is None else self.batch.find(docs)
        ranges = read_ranges(self.model, docs)
        if layers is None:
            layers, ranges = self.read(docs, ranges)
        return [DocVectors(*triple) for triple in zip(mix.predict(layers), layers, ranges)]

    def set_annotations(self, docs: Iterable[Doc], scores: Sequence[DocVectors]) -> None:
        """Write vectors to Docs and leave layers for the listeners. Arrays in a Doc come to lie in main memory, and each Doc owns
        its own. A `doc.tensor` that listeners of spaCy's tok2vec are still to read stays as it is.

        docs (Iterable[Doc]): The Docs.
        scores (Sequence[DocVectors]): What `predict` gave for them.
        """
        to_numpy: Callable[[Any], Any] = self.model.ops.to_numpy
        has_readers = bool(self.tensor_readers)
        n_listeners = len(self.listeners)
        for doc, (mixed, layers, ranges, surprisal) in zip(docs, scores):
            if surprisal is not None:
                attributes.annotate_surprisal(doc, surprisal)
            if n_listeners and layers is not None and ranges is not None:
                hand_over(self, doc, ranges, layers, uses=n_listeners)
            if self.store != "none":
                kept = to_numpy(layers) if self.store == "layers" and layers is not None else None
                leaves_tensor = has_readers and doc.tensor.size > 0
                attributes.annotate(doc, to_numpy(mixed), kept, half=self.half, leaves_tensor=leaves_tensor)
        if n_listeners:
            make_room()

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

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Language | None = None,
        source: str | list[str] | None = None,
    ) -> None:
        """Load the weights now instead of at first use, and link the listeners, which then know their width. No examples are
        read.

        get_examples (Callable): Not used.
        nlp (Language | None): The pipeline.
        source (str | list[str] | None): Where the weights are, in place of the `source` of the model: it is needed
            here only, and a pipeline that was saved does not look for it. In a config under [initialize.components.elmo].
        RAISES (WeightsError): E1xx, E302 if there are no weights. (ConfigError): E351 if an encoder does not fit.
        """
        if source is not None:
            self.note_other_weights()
            self._load_source(source)
        self._ensure_softmax()
        self.mix
        self.bilm
        if nlp is not None:
            self.note_pipeline(nlp)
            nlp._link_components()
            self._sentence_setters = sentence_setters(nlp, self.name)
            self.check_encoders(nlp)

    def update(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optimizer | None = None,
        losses: dict[str, float] | None = None,
    ) -> dict[str, float]:
        """Read a batch for the listeners, which are updated next.

        examples (Iterable[Example]): The batch.
        drop (float): Not used; each listener has a dropout of its own.
        sgd (Optimizer | None): Makes a step when the listeners have given their gradients.
        losses (dict[str, float] | None): Losses of the pipeline. This pipe adds the squared norms of the gradients, or 0 if it is
            frozen.
        RETURNS (dict[str, float]): The losses.
        """
        losses = {} if losses is None else losses
        examples = list(examples)
        validate_examples(examples, "Elmo.update")
        losses.setdefault(self.name, 0.0)
        if self.batch is not None:
            self.batch.settle()
        self._is_training = True
        bilm_shim(self.model).owner = f"the elmo pipe {self.name!r}"
        docs = [example.predicted for example in examples]
        self._warn_of_missing_sentences(docs)
        n_listeners = len(self.listeners)
        if n_listeners and self.is_frozen:
            self.batch = UpdateBatch(docs, self.read(docs)[0], n_listeners)
        elif n_listeners:
            layers, backprop = self.model.begin_update(docs)
            self.batch = UpdateBatch(docs, layers, n_listeners, backprop, _adder(losses, self.name))
            if sgd:
                self.finish_update(sgd)
        return losses

    def get_loss(self, examples: Iterable[Example], scores: Any) -> None:
        """Do nothing: the losses are those of the listeners."""

    def finish_update(self, sgd: Optimizer) -> None:
        """Make a step with the gradients of the listeners; if none has given one yet, when the last has.

        sgd (Optimizer): The optimizer.
        RAISES (TrainingError): E313 if a gradient is not finite.
        """
        if self.is_frozen:
            return
        batch = self.batch
        if batch is not None and batch.is_waiting:
            batch.finish = partial(self.model.finish_update, sgd)
            return
        if batch is not None:
            batch.settle()
        self.model.finish_update(sgd)

    def use_params(self, params: dict[Any, Any]) -> Iterator[None]:
        """Let the biLM have other weights for a while, such as their averages.

        params (dict): The weights.
        """
        self._settle()
        with self.model.use_params(params):
            yield

    def add_label(self, label: str) -> int:
        """RAISES (PipelineError): E307; this pipe has no labels."""
        raise PipelineError(Errors.E307.format(name=self.name, label=label))

    def _settle(self, docs: Sequence[Doc] = ()) -> None:
        """Make a step that is overdue before anybody looks, as some listener has given no gradient. Docs of the batch itself may be
        annotated before the first gradient comes."""
        batch = self.batch
        if batch is not None and not (batch.is_waiting and docs and batch.find(docs) is not None):
            batch.settle_overdue()

    def _warn_of_missing_sentences(self, docs: Sequence[Doc]) -> None:
        """Warn, once, with W303 if sentences are not marked in training that will be in use."""
        reads_sentences = isinstance(self.model.attrs["reading"].get_spans, SentenceSpans)
        if reads_sentences and not any(doc.has_annotation("SENT_START") for doc in docs if len(doc) > 1):
            setters, self._sentence_setters = self._sentence_setters, []
            if setters:
                warnings.warn(Warnings.W303.format(name=self.name, setters=setters), ElmoWarning, stacklevel=3)

    def _recall(self, words: list[list[str]]) -> Floats3d:
        """The layers of words, from the cache where they are there."""
        cache, ops = cast("FeatureCache", self._cache), self.model.ops

        def compute(missing: Sequence[Sequence[str]]) -> Any:
            return ops.to_numpy(run_words(self.model, [list(sequence) for sequence in missing]))

        return ops.asarray3f(cast(Floats3d, cache.look_up(words, self.fingerprint(), compute)))

    def _take_new_weights(self) -> None:
        self.batch = None
        sync_dims(self.model)
        self._mix = None
        if self.model.has_dim("nL"):
            self._ensure_mix()

    def _ensure_mix(self) -> Model[list[Floats3d], list[Floats2d]]:
        n_layers = self.model.get_dim("nL")
        mix = self._mix
        if mix is None:
            shares = layer_shares(self.name, self.layer_weights, n_layers)
            mix = self._mix = build_scalar_mix(shares, self.gamma, trainable=False)
        return mix


def _adder(losses: dict[str, float], name: str) -> Callable[[float], None]:
    def add(loss: float) -> None:
        losses[name] += loss

    return add


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
