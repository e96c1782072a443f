"""The scalar mix: layers of a language model weighed and summed (Peters et al. 2018, equation 1).

ELMo = gamma * sum_l s_l h_l,   s = softmax(w)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from spacy.util import registry
from thinc.api import Model
from thinc.types import Floats1d, Floats2d, Floats3d

from ..errors import ConfigError, Errors

ROWS_AT_ONCE = 1024
"""Rows that are mixed at once, so that what lies in between stays small."""


@registry.architectures("spacy_elmo.ScalarMix.v1")  # type: ignore[untyped-decorator]
def build_scalar_mix(
    layer_weights: list[float] | None = None,
    gamma: float = 1.0,
    trainable: bool = True,
) -> Model[list[Floats3d], list[Floats2d]]:
    """Mix the layers of each sequence: (n, layers, width) to (n, width).

    Parameters: `W`, float32 (layers,), the weights before the softmax, and `gamma`, float32 (1,).

    layer_weights (list[float] | None): Where the mix starts: the share of each layer, from 0 up; they are divided by
        their sum, and a layer of share 0 stays out for good. Default: equal shares, for as many layers as `initialize`
        or the first batch shows.
    gamma (float): Where the common factor starts.
    trainable (bool): Whether `W` and `gamma` learn; the gradient of the layers flows in any case.
    RETURNS (Model[list[Floats3d], list[Floats2d]]): The layer.
    RAISES (ConfigError): E300 if a setting cannot be, E310 if a batch has another number of layers than the mix.
    """
    model: Model[list[Floats3d], list[Floats2d]] = Model(
        "scalar_mix",
        _forward,
        init=_init,
        dims={"nL": None},
        params={"W": None, "gamma": None},
        attrs={"gamma": float(gamma), "trainable": trainable},
    )
    if layer_weights is not None:
        _set_params(model, _before_softmax(layer_weights))
    return model


def layer_shares(model: Model[Any, Any]) -> Floats1d:
    """RETURNS (Floats1d): s = softmax(w), float32 (layers,), of an initialized mix."""
    return model.ops.softmax(cast(Floats1d, model.get_param("W")))


def _before_softmax(shares: list[float]) -> np.ndarray:
    given = np.asarray(shares, dtype=np.float64)
    if given.ndim != 1 or not (np.isfinite(given).all() and (given >= 0).all() and given.sum() > 0):
        expected = "numbers from 0 up, one for each layer, not all of them 0"
        owner = "the scalar mix"
        raise ConfigError(Errors.E300.format(name="layer_weights", owner=owner, value=shares, expected=expected))
    with np.errstate(divide="ignore"):
        weights: np.ndarray = np.log(given / given.sum()).astype(np.float32)
    return weights


def _init(model: Model[Any, Any], X: list[Floats3d] | None = None, Y: object = None) -> None:
    if X and not model.has_param("W"):
        _set_params(model, np.zeros(X[0].shape[1], dtype=np.float32))


def _set_params(model: Model[Any, Any], weights: np.ndarray) -> None:
    model.set_dim("nL", len(weights))
    model.set_param("W", model.ops.asarray1f(cast(Floats1d, weights)))
    model.set_param("gamma", model.ops.asarray1f([model.attrs["gamma"]]))


def _forward(
    model: Model[list[Floats3d], list[Floats2d]], sequences: list[Floats3d], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Floats3d]]]:
    _init(model, sequences)
    if not sequences:
        return [], _backprop_nothing
    n_layers = model.get_dim("nL")
    for layers in sequences:
        if layers.shape[1] != n_layers:
            raise ConfigError(Errors.E310.format(given=layers.shape[1], expected=n_layers))
    shares = layer_shares(model)
    gamma = float(model.get_param("gamma")[0])
    mixed = [_weighted_sum(layers, shares * gamma, model.ops.xp) for layers in sequences]

    def backprop(d_mixed: list[Floats2d]) -> list[Floats3d]:
        if model.attrs["trainable"]:
            # d_shares[l] = sum of d_mixed * layer l, at gamma = 1; (W, gamma) get theirs by the chain rule.
            d_shares = sum(model.ops.xp.einsum("td,tld->l", d, layers) for d, layers in zip(d_mixed, sequences))
            model.inc_grad("gamma", model.ops.asarray1f((shares @ d_shares).reshape(1)))
            model.inc_grad("W", gamma * shares * (d_shares - shares @ d_shares))
        return [model.ops.xp.einsum("td,l->tld", d, gamma * shares) for d in d_mixed]

    return mixed, backprop


def _weighted_sum(layers: Floats3d, weights: Floats1d, xp: Any) -> Floats2d:
    mixed = xp.zeros((layers.shape[0], layers.shape[2]), dtype=layers.dtype)
    taken = [(layer, weight) for layer, weight in enumerate(weights.tolist()) if weight != 0.0]
    for start in range(0, len(mixed), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        for layer, weight in taken:
            mixed[rows] += weight * layers[rows, layer]
    return cast(Floats2d, mixed)


def _backprop_nothing(d_mixed: list[Floats2d]) -> list[Floats3d]:
    return []
