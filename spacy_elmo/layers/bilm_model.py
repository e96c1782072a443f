"""The biLM as a layer that a spaCy config can name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from spacy.tokens import Doc, Span
from spacy.util import registry
from thinc.api import Model
from thinc.types import Floats3d, FloatsXd
from thinc.util import torch2xp

from ..errors import Errors, PipelineError
from ..lm.config import InitialState
from .checks import require
from .handover import Ranges
from .shim import BiLMShim
from .word_sequences import WordSequences, put_back, word_sequences

if TYPE_CHECKING:
    import torch

_require = partial(require, "the architecture spacy_elmo.BiLM.v1")

SpanGetter = Callable[[list[Doc]], list[list[Span]]]
Words = list[list[str]]
RunWords = Callable[[Words], Floats3d]


@dataclass(frozen=True)
class Reading:
    """How Docs are read. Thinc does not serialize it, so that the config decides, not what was saved.

    get_spans (Callable): From Docs to the spans that are run as sequences.
    max_batch_words (int): Words that run at the same time.
    """

    get_spans: SpanGetter
    max_batch_words: int


@registry.architectures("spacy_elmo.BiLM.v1")  # type: ignore[untyped-decorator]
def build_bilm_model(
    get_spans: Callable[[list[Doc]], list[list[Span]]],
    source: str | Path | list[str] | None = None,
    max_batch_words: int = 8192,
    initial_state: str | None = None,
    dtype: str = "float32",
) -> Model[list[Doc], list[Floats3d]]:
    """A biLM over Docs. For each Doc it gives float32 (tokens, layers, width): layer 0 without context, then the
    LSTM layers. Whitespace tokens and tokens in no span have zeros.

    Its width is known from the config of the weights at once; the weights are loaded at first use, or come with a saved
    pipeline, which then needs no source.

    get_spans (Callable): Which spans of a Doc are sequences of the language model, such as sentences.
    source (str | Path | list[str] | None): Where the weights are: a directory, a zip file, the pair of files of a model of
        bilm-tf or AllenNLP, a short name, or an address, see `weights.source`. What must be fetched is fetched at first
        use. Default: the model that comes with spacy-elmo.
    max_batch_words (int): Words that run at the same time; bounds the memory, changes no result.
    initial_state (str | None): Where every sequence starts, "zero" or "canonical". Default: as the weights say.
    dtype (str): What the biLM computes in: "float32".
    RETURNS (Model[list[Doc], list[Floats3d]]): The layer.
    RAISES (ConfigError): E300 if a setting cannot be.
    """
    _require("max_batch_words", max_batch_words, max_batch_words >= 1, "a whole number from 1 up")
    _require("dtype", dtype, dtype == "float32", '"float32"')
    # "carry" wants the state of the text before, which a pipeline does not keep: it would be "zero" under another name.
    states = [state for state in get_args(InitialState) if state != "carry"]
    expected = f"one of {states}, or null for what the weights say"
    _require("initial_state", initial_state, initial_state is None or initial_state in states, expected)
    shim = BiLMShim(source, initial_state)
    model: Model[list[Doc], list[Floats3d]] = Model(
        "bilm",
        _forward,
        init=_init,
        dims={"nO": None, "nL": None},
        shims=[shim],
        attrs={"reading": Reading(get_spans, max_batch_words)},
    )
    sync_dims(model)
    return model


def bilm_shim(model: Model[Any, Any]) -> BiLMShim:
    """RETURNS (BiLMShim): The holder of the weights of a spacy_elmo.BiLM.v1 model."""
    return cast(BiLMShim, model.shims[0])


def sync_dims(model: Model[Any, Any]) -> None:
    """Set "nO" (width) and "nL" (layers) to those of the weights or of their config, where either is known."""
    config = bilm_shim(model).peek_config()
    if config is not None:
        # Weights that are loaded later may differ from what lay at the source when the model was built.
        model.set_dim("nO", config.width, force=True)
        model.set_dim("nL", config.n_outputs, force=True)


def read_ranges(model: Model[Any, Any], docs: Sequence[Doc]) -> list[Ranges]:
    """Say what is read of Docs as sequences, as they are now.

    model (Model): From `build_bilm_model`.
    docs (Sequence[Doc]): The Docs.
    RETURNS (list[Ranges]): For each Doc the tokens from … to … of each sequence.
    RAISES (PipelineError): E308 if the span getter does not answer for each Doc.
    """
    reading: Reading = model.attrs["reading"]
    spans = reading.get_spans(list(docs))
    if len(spans) != len(docs):
        raise PipelineError(Errors.E308.format(getter=reading.get_spans, given=len(spans), expected=len(docs)))
    return [[(span.start, span.end) for span in doc_spans] for doc_spans in spans]


def embed(
    model: Model[Any, Any],
    docs: Sequence[Doc],
    reduce: Callable[[Floats3d], FloatsXd] | None = None,
    *,
    ranges: Sequence[Ranges] | None = None,
    run: RunWords | None = None,
) -> list[FloatsXd]:
    """Run Docs through the biLM.

    model (Model): From `build_bilm_model`.
    docs (Sequence[Doc]): The Docs.
    reduce (Callable | None): Applied to the layers of all words of the batch, (words, layers, width), before they are
        put to their tokens; takes less memory than to reduce afterwards.
    ranges (Sequence[Ranges] | None): What is read as sequences. Default: what the span getter says.
    run (Callable | None): From the words of sequences to their layers, in place of `run_words`.
    RETURNS (list[FloatsXd]): (tokens, layers, width) for each Doc, or what `reduce` makes of it; each owns its memory.
    RAISES (PipelineError): E308 if the span getter does not answer for each Doc. (WeightsError): E1xx, E302 without weights.
    """
    sequences = _sequences(model, docs, ranges)
    words = _words(sequences)
    values: FloatsXd = run_words(model, words) if run is None else run(words)
    if reduce is not None:
        values = reduce(cast(Floats3d, values))
    return put_back(values, sequences, [len(doc) for doc in docs], model.ops.xp)


def run_words(model: Model[Any, Any], words: Words) -> Floats3d:
    """Run sequences of words through the biLM, without a graph.

    model (Model): From `build_bilm_model`.
    words (list[list[str]]): The words of each sequence.
    RETURNS (Floats3d): (words, layers, width), the sequences one after another.
    RAISES (WeightsError): E1xx, E302 without weights.
    """
    shim = bilm_shim(model)
    if not words and model.has_dim("nO"):
        # A batch without words needs no weights.
        return model.ops.alloc3f(0, model.get_dim("nL"), model.get_dim("nO"))
    layers = shim.predict((words, model.attrs["reading"].max_batch_words))
    if not model.has_dim("nO"):
        sync_dims(model)
    return _to_xp(model, layers)


def _sequences(model: Model[Any, Any], docs: Sequence[Doc], ranges: Sequence[Ranges] | None) -> list[WordSequences]:
    ranges = read_ranges(model, docs) if ranges is None else ranges
    return [word_sequences(doc, [doc[start:end] for start, end in each]) for doc, each in zip(docs, ranges)]


def _words(sequences: Sequence[WordSequences]) -> Words:
    return [sentence for doc_sequences in sequences for sentence in doc_sequences.words]


def _to_xp(model: Model[Any, Any], layers: torch.Tensor) -> Floats3d:
    if model.ops.device_type == "gpu":
        return cast(Floats3d, torch2xp(layers, ops=model.ops))
    return cast(Floats3d, layers.cpu().numpy())


def _init(model: Model[Any, Any], X: list[Doc] | None = None, Y: object = None) -> None:
    if not model.has_dim("nO"):
        run_words(model, [])


def _forward(
    model: Model[list[Doc], list[Floats3d]], docs: list[Doc], is_train: bool
) -> tuple[list[Floats3d], Callable[[list[Floats3d]], list[Doc]]]:
    if not is_train or bilm_shim(model).fine_tuning is None:
        return cast(list[Floats3d], embed(model, docs)), _no_gradient
    sequences = _sequences(model, docs, None)
    words = _words(sequences)
    if not words:
        return cast(list[Floats3d], embed(model, docs, ranges=[[] for _ in docs])), _no_gradient
    tensor, backprop_words = bilm_shim(model).begin_update((words, model.attrs["reading"].max_batch_words))
    sync_dims(model)
    values = _to_xp(model, tensor)
    shape = values.shape

    def backprop(d_layers: list[Floats3d]) -> list[Doc]:
        d_words = model.ops.alloc3f(*shape)
        _take_up(d_words, d_layers, sequences, model.ops.xp)
        backprop_words(d_words)
        return []

    return put_back(values, sequences, [len(doc) for doc in docs], model.ops.xp), backprop


def _take_up(d_words: Floats3d, d_layers: list[Floats3d], sequences: Sequence[WordSequences], xp: Any) -> None:
    """The inverse of `put_back`: gradients of tokens, given to the words that the tokens had their values from."""
    start = 0
    for d_doc, (words, rows, tokens) in zip(d_layers, sequences):
        d_words[xp.asarray(rows + start)] = d_doc[xp.asarray(tokens)]
        start += sum(map(len, words))


def _no_gradient(d_layers: list[Floats3d]) -> list[Doc]:
    """The biLM is frozen, and Docs have no gradient."""
    return []
