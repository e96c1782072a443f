"""Settings of an elmo pipe, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from ..layers import checks

FLOAT32_MAX = 3.4e38


def is_number(value: object) -> bool:
    """RETURNS (bool): Whether it is a number that float32 can hold."""
    return checks.is_number(value) and abs(cast(float, value)) <= FLOAT32_MAX


def layer_shares(name: str, layer_weights: Sequence[float] | int | None, n_layers: int) -> list[float]:
    """Tell what share each layer has in the mix of an elmo pipe.

    name (str): Name of the pipe.
    layer_weights (Sequence[float] | int | None): See `factory.make_elmo`.
    n_layers (int): Layers of the biLM.
    RETURNS (list[float]): One for each layer.
    RAISES (ConfigError): E300 if that cannot be.
    """
    if layer_weights is None:
        return [1.0] * n_layers
    if isinstance(layer_weights, (bool, float, str)):
        require(name, "layer_weights", layer_weights, False, "null, one number for each layer, or one whole number")
    if isinstance(layer_weights, int):
        expected = f"a layer from 0 to {n_layers - 1}, for the biLM has {n_layers} layers"
        require(name, "layer_weights", layer_weights, 0 <= layer_weights < n_layers, expected)
        return [float(layer == layer_weights) for layer in range(n_layers)]
    shares = [float(share) for share in layer_weights]
    fits = len(shares) == n_layers and min(shares) >= 0 and 0 < sum(shares) < math.inf
    expected = f"{n_layers} numbers from 0 up, one for each layer of the biLM, not all of them 0"
    require(name, "layer_weights", layer_weights, fits, expected)
    return shares


def require(owner: str, name: str, value: object, condition: bool, expected: str) -> None:
    """Refuse a setting of an elmo pipe unless the condition holds.

    owner (str): Name of the pipe.
    name, value, expected: The setting, its value and what it must be.
    condition (bool): Whether it is that.
    RAISES (ConfigError): E300.
    """
    checks.require(f"the elmo pipe {owner!r}", name, value, condition, expected)
