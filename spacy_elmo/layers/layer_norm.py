"""Layer normalization without parameters, before a mix, with its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thinc.types import Floats3d

LAYER_NORMS = ("none", "token", "batch")

EPSILON = 1e-12
"""Added to a variance, as in bilm-tf."""

Layers = list[Floats3d]


def normalize(xp: Any, sequences: Layers, kind: str) -> tuple[Layers, Callable[[Layers], Layers]]:
    """Bring each layer to mean 0 and variance 1.

    xp (module): numpy or cupy, where the layers are.
    sequences (list[Floats3d]): (n, layers, width) each.
    kind (str): "none"; "token": over the width; "batch": over all words of all sequences and the width. Rows that are zeros in
        all layers are no words: they stay zeros and do not count.
    RETURNS (tuple[list[Floats3d], Callable]): The normalized layers, and from their gradient to that of the layers.
    """
    if kind == "none":
        return sequences, _unchanged
    if kind == "token":
        parts = [_normalize(xp, layers, (2,)) for layers in sequences]
        return [part[0] for part in parts], lambda d_sequences: [part[1](d) for part, d in zip(parts, d_sequences)]
    ends = xp.cumsum(xp.asarray([len(layers) for layers in sequences]))[:-1].tolist()
    normal, backprop = _normalize(xp, xp.concatenate(sequences), (0, 2))
    return xp.split(normal, ends), lambda d_sequences: xp.split(backprop(xp.concatenate(d_sequences)), ends)


def _normalize(xp: Any, layers: Any, axes: tuple[int, ...]) -> tuple[Any, Callable[[Any], Any]]:
    """Mean 0 and variance 1 over some axes of one array, and the way back of the gradient."""
    is_word = (xp.einsum("tld,tld->t", layers, layers) > 0)[:, None, None]
    count = layers.shape[2] * (max(1, int(is_word.sum())) if 0 in axes else 1)

    def mean(values: Any) -> Any:
        return values.sum(axis=axes, keepdims=True) / count

    centred = (layers - mean(layers)) * is_word
    scale = is_word / xp.sqrt(mean(centred * centred) + xp.float32(EPSILON))
    normal = centred * scale

    def backprop(d_normal: Any) -> Any:
        d_normal = d_normal * is_word
        return (d_normal - mean(d_normal) - normal * mean(d_normal * normal)) * scale

    return normal, backprop


def _unchanged(d_sequences: Layers) -> Layers:
    return d_sequences
