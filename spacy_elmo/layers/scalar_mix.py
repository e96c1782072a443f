"""The scalar mix: layers of a language model weighed and summed (Peters et al. 2018, equation 1).

ELMo = gamma * sum_l s_l h_l,   s = softmax(w)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
from spacy.util import registry
from thinc.api import Model
from thinc.types import Floats1d, Floats2d, Floats3d

from ..errors import ConfigError, Errors, PipelineError
from .checks import require
from .layer_norm import LAYER_NORMS, normalize

_require = partial(require, "the scalar mix")

ROWS_AT_ONCE = 1024
"""Rows that are mixed at once, so that what lies in between stays small."""

MIX = "scalar_mix"
"""Name of the layer."""

LEFT_OUT = -1e4
"""Before the softmax, for a layer of share 0. Minus infinity would become no number by weight decay."""

ScalarMix = Model[list[Floats3d], list[Floats2d]]


@dataclass(frozen=True)
class MixSettings:
    """How a mix learns. Thinc does not serialize it, so that the config decides, not what was saved.

    See `build_scalar_mix`.
    """

    gamma: float
    trainable: bool
    layer: int | None
    layer_norm: str
    layer_dropout: float
    l2: float


@registry.architectures("spacy_elmo.ScalarMix.v1")  # type: ignore[untyped-decorator]
def build_scalar_mix(
    layer_weights: list[float] | None = None,
    gamma: float = 1.0,
    trainable: bool = True,
    layer: int | None = None,
    layer_norm: str = "none",
    layer_dropout: float = 0.0,
    l2: float = 0.0,
) -> Model[list[Floats3d], list[Floats2d]]:
    """Mix the layers of each sequence: (n, layers, width) to (n, width).

    Parameters: `W`, float32 (layers,), the weights before the softmax, and `gamma`, float32 (1,).

    layer_weights (list[float] | None): Where the mix starts: the share of each layer, from 0 up; they are divided by
        their sum, and a layer of share 0 stays out for good. Default: equal shares, for as many layers as `initialize`
        or the first batch shows.
    gamma (float): Where the common factor starts.
    trainable (bool): Whether `W` and `gamma` learn; the gradient of the layers flows in any case.
    layer (int | None): Take this layer alone; only `gamma` learns. Default: all layers.
    layer_norm (str): What is done to each layer first. "none"; "token": mean 0 and variance 1 for each token; "batch": mean 0
        and variance 1 over all values of the layer in the batch, as bilm-tf and AllenNLP offer it, so that results depend on
        the batch. Rows of zeros, which are no words, stay zeros and do not count.
    layer_dropout (float): Chance for each layer to be left out in an update; one at least stays.
    l2 (float): Factor of the sum of squares of `W` in the loss, which pulls the mix towards equal shares.
    RETURNS (Model[list[Floats3d], list[Floats2d]]): The layer.
    RAISES (ConfigError): E300 if a setting cannot be, E310 if a batch has another number of layers than the mix. (PipelineError):
        E380, in prediction, if a parameter is not finite.
    """
    settings = MixSettings(float(gamma), trainable, layer, layer_norm, float(layer_dropout), float(l2))
    _check(settings, layer_weights)
    model: ScalarMix = Model(
        MIX,
        _forward,
        init=_init,
        dims={"nL": None},
        params={"W": None, "gamma": None},
        attrs={"settings": settings, "component": None},
    )
    if layer_weights is not None:
        _set_params(model, _before_softmax(layer_weights))
    return model


def is_mix(model: Model[Any, Any]) -> bool:
    """RETURNS (bool): Whether this is a mix."""
    return model.name == MIX


def layer_shares(model: Model[Any, Any]) -> Floats1d:
    """RETURNS (Floats1d): s = softmax(w), float32 (layers,), of an initialized mix."""
    return model.ops.softmax(cast(Floats1d, model.get_param("W")))


def _check(settings: MixSettings, layer_weights: list[float] | None) -> None:
    expected = f"one of {LAYER_NORMS}"
    _require("layer_norm", settings.layer_norm, settings.layer_norm in LAYER_NORMS, expected)
    _require("gamma", settings.gamma, bool(np.isfinite(settings.gamma)), "a finite number")
    expected = "a number from 0 up and below 1"
    _require("layer_dropout", settings.layer_dropout, 0 <= settings.layer_dropout < 1, expected)
    _require("l2", settings.l2, 0 <= settings.l2 < float("inf"), "a number from 0 up")
    fits = settings.layer is None or (layer_weights is None and settings.layer >= 0)
    _require("layer", settings.layer, fits, "the number of a layer, from 0 up, or null; not beside layer_weights")


def _before_softmax(shares: list[float]) -> np.ndarray:
    given = np.asarray(shares, dtype=np.float64)
    if given.ndim != 1 or not (np.isfinite(given).all() and (given >= 0).all() and given.sum() > 0):
        _require("layer_weights", shares, False, "numbers from 0 up, one for each layer, not all of them 0")
    with np.errstate(divide="ignore"):
        weights: np.ndarray = np.maximum(np.log(given / given.sum()), LEFT_OUT).astype(np.float32)
    return weights


def _init(model: ScalarMix, X: list[Floats3d] | None = None, Y: object = None) -> None:
    if not X or model.has_param("W"):
        return
    n_layers = X[0].shape[1]
    layer = model.attrs["settings"].layer
    if layer is None:
        _set_params(model, np.zeros(n_layers, dtype=np.float32))
        return
    expected = f"a layer from 0 to {n_layers - 1}, for the biLM has {n_layers} layers"
    _require("layer", layer, layer < n_layers, expected)
    _set_params(model, _before_softmax([float(each == layer) for each in range(n_layers)]))


def _set_params(model: ScalarMix, weights: np.ndarray) -> None:
    model.set_dim("nL", len(weights))
    model.set_param("W", model.ops.asarray1f(cast(Floats1d, weights)))
    model.set_param("gamma", model.ops.asarray1f([model.attrs["settings"].gamma]))


def _forward(
    model: ScalarMix, sequences: list[Floats3d], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Floats3d]]]:
    _init(model, sequences)
    if not sequences:
        return [], _backprop_nothing
    n_layers = model.get_dim("nL")
    for layers in sequences:
        if layers.shape[1] != n_layers:
            raise ConfigError(Errors.E310.format(given=layers.shape[1], expected=n_layers))
    settings: MixSettings = model.attrs["settings"]
    shares = _drop_layers(model) if is_train and settings.layer_dropout else layer_shares(model)
    gamma = float(model.get_param("gamma")[0])
    normalized, backprop_norm = normalize(model.ops.xp, sequences, settings.layer_norm)
    factors = (shares * gamma).tolist()
    if not is_train and not np.isfinite(factors).all():
        _refuse(model)
    mixed = [_weighted_sum(layers, factors, model.ops.xp) for layers in normalized]

    def backprop(d_mixed: list[Floats2d]) -> list[Floats3d]:
        if settings.trainable:
            _learn(model, normalized, d_mixed, shares, gamma)
        return backprop_norm([model.ops.xp.einsum("td,l->tld", d, gamma * shares) for d in d_mixed])

    return mixed, backprop


def _learn(
    model: ScalarMix, sequences: list[Floats3d], d_mixed: list[Floats2d], shares: Floats1d, gamma: float
) -> None:
    # d_shares[l] = sum of d_mixed * layer l, at gamma = 1; (W, gamma) get theirs by the chain rule.
    d_shares = sum(model.ops.xp.einsum("td,tld->l", d, layers) for d, layers in zip(d_mixed, sequences))
    model.inc_grad("gamma", model.ops.asarray1f((shares @ d_shares).reshape(1)))
    settings: MixSettings = model.attrs["settings"]
    if settings.layer is None:
        weights = model.get_param("W")
        pull = 2 * settings.l2 * weights * _is_in(weights)
        model.inc_grad("W", gamma * shares * (d_shares - shares @ d_shares) + pull)


def _drop_layers(model: ScalarMix) -> Floats1d:
    """Shares without those layers that chance leaves out."""
    weights, xp = cast(Floats1d, model.get_param("W")), model.ops.xp
    stays = _is_in(weights) & (xp.random.uniform(size=weights.shape) >= model.attrs["settings"].layer_dropout)
    if not stays.any():
        stays = _is_in(weights)
    return model.ops.softmax(cast(Floats1d, xp.where(stays, weights, xp.float32(LEFT_OUT))))


def _is_in(weights: Any) -> Any:
    """Which layers take part."""
    return weights > LEFT_OUT / 2


def _refuse(model: ScalarMix) -> None:
    """In training it is the gradient that is looked at."""
    component = model.attrs["component"]
    owner = "a component" if component is None else f"the component {component!r} ([components.{component}.model])"
    weights, gamma = (cast(Floats1d, model.get_param(name)).tolist() for name in ("W", "gamma"))
    raise PipelineError(Errors.E380.format(owner=owner, weights=weights, gamma=gamma[0]))


def _weighted_sum(layers: Floats3d, factors: list[float], xp: Any) -> Floats2d:
    mixed = xp.zeros((layers.shape[0], layers.shape[2]), dtype=layers.dtype)
    taken = [(layer, factor) for layer, factor in enumerate(factors) if factor != 0.0]
    for start in range(0, len(mixed), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        for layer, factor in taken:
            mixed[rows] += factor * layers[rows, layer]
    return cast(Floats2d, mixed)


def _backprop_nothing(d_mixed: list[Floats2d]) -> list[Floats3d]:
    return []
