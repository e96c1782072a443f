"""One batch of `Elmo.update` on its way to the listeners and, unless the biLM is frozen, back."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from spacy.tokens import Doc
from thinc.types import Floats3d
from thinc.util import get_array_module

from ..layers.handover import content

Layers = list[Floats3d]
Backprop = Callable[[Layers], list[Doc]]


class UpdateBatch:
    """Layers of a batch, kept until all listeners have had them, and the gradients that these give, gathered so that they go
    through the biLM once. Copies and pickles of it are None.

    docs (Sequence[Doc]): The Docs.
    layers (list[Floats3d]): (tokens, layers, width) for each.
    expected (int): How many listeners there are.
    backprop (Callable | None): Takes the gradients of all layers to the weights; None if the biLM is frozen.
    add_loss (Callable | None): Called with the square of the norm of each gradient.
    """

    def __init__(
        self,
        docs: Sequence[Doc],
        layers: Layers,
        expected: int,
        backprop: Backprop | None = None,
        add_loss: Callable[[float], None] | None = None,
    ) -> None:
        self._docs = list(docs)
        self._layers = layers
        self._places: dict[bytes, list[int]] = defaultdict(list)
        for index, doc in enumerate(docs):
            self._places[content(doc)].append(index)
        self._d_layers: Layers | None = None
        self._backprop = backprop
        self._expected = expected
        self._taken = 0
        self._delivered = 0
        self._add_loss = add_loss
        self.finish: Callable[[], None] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _none, ()

    @property
    def is_waiting(self) -> bool:
        """Whether gradients are wanted and none has come."""
        return self._backprop is not None and self._delivered == 0

    def find(self, docs: Sequence[Doc]) -> Layers | None:
        """RETURNS (list[Floats3d] | None): The layers of these very Docs, if they are all of this batch and still there."""
        own = self._own_places()
        found = [own.get(id(doc)) for doc in docs]
        return None if None in found else [self._layers[index] for index in found if index is not None]

    def take(self, docs: Sequence[Doc]) -> tuple[list[Floats3d | None], Backprop]:
        """Give a listener the layers of the Docs that it sees, which need not be the same objects: some components copy them.

        docs (Sequence[Doc]): The Docs.
        RETURNS (tuple): The layers of each, None for one that is not of this batch, and what takes their gradient.
        """
        own = self._own_places()
        places: list[int | None] = []
        seen: Counter[bytes] = Counter()
        for doc in docs:
            key = content(doc)
            same = self._places.get(key, [])
            place = own.get(id(doc))
            if place not in same:
                # Of copies with the same words, the first is of the first.
                place = same[seen[key]] if seen[key] < len(same) else None
                seen[key] += 1
            places.append(place)
        layers = [None if place is None else self._layers[place] for place in places]
        self._taken += 1
        if self._backprop is None:
            if self._taken >= self._expected:
                self._release()
            return layers, _no_gradient

        def backprop(d_layers: Layers) -> list[Doc]:
            self._gather(places, d_layers)
            return []

        return layers, backprop

    def backpropagate(self) -> None:
        """Take the gradients that have been given through the biLM. What comes later is lost: the graph is gone."""
        backprop, d_layers = self._backprop, self._d_layers
        self._release()
        if backprop is not None and d_layers is not None:
            backprop(d_layers)

    def _gather(self, places: Sequence[int | None], d_layers: Layers) -> None:
        if self._backprop is None:
            return
        if self._d_layers is None:
            self._d_layers = [get_array_module(layers).zeros_like(layers) for layers in self._layers]
        for place, d_doc in zip(places, d_layers):
            if place is not None:
                self._d_layers[place] += d_doc
        self._delivered += 1
        if self._add_loss is not None:
            self._add_loss(sum(_squares(d_doc) for d_doc in d_layers))
        if self.finish is not None and self._delivered >= max(self._expected, self._taken):
            self.settle()

    def settle(self) -> None:
        """Do what has been put off until all gradients were there."""
        self.backpropagate()
        finish, self.finish = self.finish, None
        if finish is not None:
            finish()

    def settle_overdue(self) -> None:
        """Do what has been put off, if it was. As long as no gradient has come, that is a step with those of earlier batches; it
        may still come, so that the graph stays."""
        if self.finish is not None and self.is_waiting:
            self.finish()
        elif self.finish is not None:
            self.settle()

    def _own_places(self) -> dict[int, int]:
        return {id(doc): index for index, doc in enumerate(self._docs)}

    def _release(self) -> None:
        self._docs, self._layers, self._d_layers, self._backprop = [], [], None, None
        self._places.clear()


def _squares(d_doc: Any) -> float:
    return float((d_doc**2).sum())


def _none() -> None:
    """What a copy is."""


def _no_gradient(d_layers: Any) -> list[Doc]:
    return []
