"""Where ELMo goes in the network of a task (Peters et al. 2018, table 3): beside the embeddings that go into its encoder,
beside what comes out of it, or both. Each of these fits the `tok2vec` of spaCy's own architectures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spacy.ml.staticvectors import StaticVectors
from spacy.tokens import Doc
from spacy.util import registry
from thinc.api import Maxout, Model, chain, with_array
from thinc.types import Floats2d, Ragged
from thinc.util import get_width

from ..errors import ConfigError, Errors
from .listener import LINK, Upstream

Tok2Vec = Model[list[Doc], list[Floats2d]]
Encoder = Model[list[Floats2d], list[Floats2d]]

MAXOUT_PIECES = 3
"""As in spaCy's MultiHashEmbed, which reduces its embeddings in the same way."""


@registry.architectures("spacy_elmo.ElmoTok2Vec.v1")  # type: ignore[untyped-decorator]
def build_elmo_tok2vec(
    embed: Tok2Vec | None,
    encode: Encoder | None,
    elmo_input: Tok2Vec | None = None,
    elmo_output: Tok2Vec | None = None,
) -> Tok2Vec:
    """Embed and encode tokens as spacy.Tok2Vec.v2 does, with ELMo at the input, at the output, or both.

    At the input, [x; ELMo] is brought to the width of the encoder by a layer-normalized maxout; at the output, [h; ELMo]
    is the result as it is. With ELMo at both places each has a mix of its own.

    embed (Model[list[Doc], list[Floats2d]] | None): Gives x, such as spacy.MultiHashEmbed.v2. None: ELMo alone.
    encode (Model[list[Floats2d], list[Floats2d]] | None): Gives h, such as spacy.MaxoutWindowEncoder.v2 or
        spacy.TorchBiLSTMEncoder.v1. None: [x; ELMo] is the result as it is.
    elmo_input (Model[list[Doc], list[Floats2d]] | None): ELMo at the input, spacy_elmo.ElmoListener.v1.
    elmo_output (Model[list[Doc], list[Floats2d]] | None): ELMo at the output, spacy_elmo.ElmoListener.v1.
    RETURNS (Model[list[Doc], list[Floats2d]]): The layer.
    RAISES (ConfigError): E350 if these do not make a network; E351 in `initialize` if their widths do not fit.
    """
    given = {"embed": embed, "encode": encode, "elmo_input": elmo_input, "elmo_output": elmo_output}
    _check(given)
    network = _beside(embed, elmo_input)
    if encode is not None:
        if elmo_input is not None:
            network = chain(network, with_array(_reduce(_input_width(encode))))
        network = _beside(chain(network, encode), elmo_output)
    model: Tok2Vec = Model(
        "elmo_tok2vec", _forward, init=_init, dims={"nO": network.maybe_get_dim("nO")}, layers=[network]
    )
    for name, layer in given.items():
        model.set_ref(name, layer)
    return model


def _forward(
    model: Tok2Vec, docs: list[Doc], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Doc]]]:
    if not any(len(doc) for doc in docs):
        # Not all layers can take a batch without words.
        return [model.ops.alloc2f(0, model.get_dim("nO")) for _ in docs], _backprop_nothing
    vectors, backprop_network = model.layers[0](docs, is_train)

    def backprop(d_vectors: list[Floats2d]) -> list[Doc]:
        backprop_network(d_vectors)
        return []

    return vectors, backprop


def _backprop_nothing(d_vectors: list[Floats2d]) -> list[Doc]:
    return []


def _init(model: Tok2Vec, X: list[Doc] | None = None, Y: object = None) -> None:
    # Y, where spaCy passes it, is that of the whole component and says nothing of this part.
    if X and any(len(doc) for doc in X):
        _check_widths(model, X)
    network = model.layers[0].initialize(X=X)
    if network.has_dim("nO"):
        model.set_dim("nO", network.get_dim("nO"))


@registry.architectures("spacy_elmo.StaticVectors.v1")  # type: ignore[untyped-decorator]
def build_static_vectors(width: int) -> Tok2Vec:
    """The word vectors of the vocabulary, projected to a width; for `embed`, where they stand without hash embeddings.

    width (int): Width of what comes out.
    RETURNS (Model[list[Doc], list[Floats2d]]): The layer.
    """
    vectors = StaticVectors(width, dropout=0.0)
    return Model("static_vectors", _forward_vectors, init=_init_vectors, dims={"nO": width}, layers=[vectors])


def _forward_vectors(
    model: Tok2Vec, docs: list[Doc], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Doc]]]:
    ragged, backprop_ragged = model.layers[0](docs, is_train)

    def backprop(d_vectors: list[Floats2d]) -> list[Doc]:
        backprop_ragged(Ragged(model.ops.flatten(d_vectors), ragged.lengths))
        return []

    return model.ops.unflatten(ragged.dataXd, ragged.lengths), backprop


def _init_vectors(model: Tok2Vec, X: list[Doc] | None = None, Y: object = None) -> None:
    model.layers[0].initialize(X=X)


def _check(given: dict[str, Model[Any, Any] | None]) -> None:
    encode = given["encode"]
    missing = {name for name, layer in given.items() if layer is None}
    problem = None
    if {"elmo_input", "elmo_output"} <= missing:
        problem = "neither 'elmo_input' nor 'elmo_output', so that no ELMo is in it"
    elif {"embed", "elmo_input"} <= missing:
        problem = "neither 'embed' nor 'elmo_input', so that nothing goes into the encoder"
    elif "encode" in missing and "elmo_output" not in missing:
        problem = "'elmo_output' but no 'encode', so that input and output are the same place"
    elif encode is not None and _input_width(encode) is None:
        problem = f"the encoder {encode.name!r}, which does not say its width"
    if problem is not None:
        raise ConfigError(Errors.E350.format(problem=problem))


def _beside(left: Tok2Vec | None, right: Tok2Vec | None) -> Tok2Vec:
    """[left; right], or the one that there is. Unlike Thinc's `concatenate` it adds no gradients of Docs, which are none."""
    layers = [layer for layer in (left, right) if layer is not None]
    if len(layers) == 1:
        return layers[0]
    model: Tok2Vec = Model("beside", _forward_beside, init=_init_beside, dims={"nO": None}, layers=layers)
    if all(layer.has_dim("nO") for layer in layers):
        model.set_dim("nO", sum(layer.get_dim("nO") for layer in layers))
    return model


def _forward_beside(
    model: Tok2Vec, docs: list[Doc], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Doc]]]:
    xp, as_contig = model.ops.xp, model.ops.as_contig
    (left, backprop_left), (right, backprop_right) = (layer(docs, is_train) for layer in model.layers)
    joined = [xp.hstack(pair) for pair in zip(left, right)]
    border = left[0].shape[1] if left else 0

    def backprop(d_joined: list[Floats2d]) -> list[Doc]:
        backprop_left([as_contig(d[:, :border]) for d in d_joined])
        backprop_right([as_contig(d[:, border:]) for d in d_joined])
        return []

    return joined, backprop


def _init_beside(model: Tok2Vec, X: list[Doc] | None = None, Y: object = None) -> None:
    for layer in model.layers:
        layer.initialize(X=X)
    if X:
        model.set_dim("nO", sum(get_width(layer.predict(X)) for layer in model.layers))


def _reduce(width: int | None) -> Model[Floats2d, Floats2d]:
    return Maxout(nO=width, nP=MAXOUT_PIECES, normalize=True, dropout=0.0)


def _check_widths(model: Tok2Vec, docs: list[Doc]) -> None:
    """Embeddings go into the encoder as they are, where no ELMo stands beside them."""
    if model.maybe_get_ref("elmo_input") is not None:
        return
    given = get_width(model.get_ref("embed").initialize(X=docs).predict(docs))
    _require_width("a spacy_elmo.ElmoTok2Vec.v1", model.get_ref("encode"), given)


def check_encoders(component: str, model: Model[Any, Any], upstream: Upstream) -> None:
    """Refuse an encoder over a listener of another width in spaCy's own Tok2Vec, where Thinc or torch would give an error
    from their depths.

    component (str): Name of the component.
    model (Model): Its model.
    upstream (Upstream): The elmo pipe that it listens to, whose width is known.
    RAISES (ConfigError): E351.
    """
    for node in model.walk():
        embed, encode = node.maybe_get_ref("embed"), node.maybe_get_ref("encode")
        if embed is None or encode is None or not embed.layers:
            continue
        link = embed.layers[0].attrs.get(LINK)
        # A component may listen to several elmo pipes, of different widths.
        if link is None or link.upstream is not upstream:
            continue
        projections = [layer.get_dim("nO") for layer in embed.walk() if layer.name == "linear"]
        given = projections[0] if projections else upstream.model.get_dim("nO")
        _require_width(f"the component {component!r}", encode, given)


def _require_width(owner: str, encode: Encoder, given: int) -> None:
    expected = encode.maybe_get_dim("nI")
    if expected is None and encode.name.startswith("with_array(residual("):
        # spaCy's window encoders add what they give to what they take. Those of others may take what comes.
        expected = encode.maybe_get_dim("nO")
    if expected not in (None, given):
        raise ConfigError(Errors.E351.format(owner=owner, expected=expected, given=given))


def _input_width(encode: Encoder) -> int | None:
    """What the encoder takes. Those of spaCy know only what they give, which is of the same width."""
    width: int | None = encode.maybe_get_dim("nI") or encode.maybe_get_dim("nO")
    return width
