"""Layers on their way from an elmo pipe to its listeners, when a pipeline predicts.

The elmo pipe leaves for each Doc what it has read as sequences and, for a while, the layers: until all listeners have had
them, the Doc is gone, or newer layers need the room. A listener that finds none has the elmo pipe compute them again from the
same sequences, so that the result never depends on what is still there. Nothing of this is in the Doc itself, so that it is
neither saved nor sent to other processes.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from spacy.attrs import ORTH
from spacy.tokens import Doc
from thinc.types import Floats3d

BYTES_IN_TRANSIT = 2**29
"""What all layers that wait for listeners may take together."""

Ranges = list[tuple[int, int]]
"""Tokens from … to … of each sequence that the language model reads."""


class Handover:
    """What one elmo pipe leaves for the listeners of one Doc.

    upstream (Any): The elmo pipe.
    doc (Doc): The Doc, which is not held on to.
    ranges (list[tuple[int, int]]): What was read as sequences.
    layers (Floats3d | None): (tokens, layers, width).
    uses (int): How many listeners will ask for the layers.
    """

    def __init__(self, upstream: Any, doc: Doc, ranges: Ranges, layers: Floats3d, uses: int) -> None:
        self._upstream = weakref.ref(upstream)
        self._tokens = content(doc)
        self.ranges = ranges
        self._layers: Floats3d | None = layers if uses > 0 else None
        self._uses = uses
        self.n_bytes = layers.nbytes

    @property
    def upstream(self) -> Any:
        """The elmo pipe; None if it is gone."""
        return self._upstream()

    def is_of(self, doc: Doc) -> bool:
        """RETURNS (bool): Whether the Doc still has the tokens that were read."""
        return self._tokens == content(doc)

    def take(self) -> Floats3d | None:
        """RETURNS (Floats3d | None): The layers, if they are still there. The last listener takes them along."""
        layers = self._layers
        self._uses -= 1
        if self._uses <= 0:
            self.drop()
        return layers

    def drop(self) -> None:
        """Hold the layers no more."""
        self._layers = None

    @property
    def has_layers(self) -> bool:
        """Whether the layers are still there."""
        return self._layers is not None


_of_doc: weakref.WeakKeyDictionary[Doc, tuple[Handover, ...]] = weakref.WeakKeyDictionary()
_waiting: weakref.WeakValueDictionary[int, Handover] = weakref.WeakValueDictionary()
_serial = itertools.count()


def hand_over(upstream: Any, doc: Doc, ranges: Ranges, layers: Floats3d, uses: int) -> None:
    """Leave layers for listeners, in place of what the same elmo pipe left before.

    upstream, doc, ranges, layers, uses: See `Handover`.
    """
    handover = Handover(upstream, doc, ranges, layers, uses)
    others = tuple(other for other in _of_doc.get(doc, ()) if other.upstream not in (upstream, None))
    _of_doc[doc] = (*others, handover)
    if handover.has_layers:
        _waiting[next(_serial)] = handover


def make_room() -> None:
    """Drop the oldest layers beyond `BYTES_IN_TRANSIT`, and forget what nobody waits for."""
    waiting = []
    # A copy, made at once: other threads may go on meanwhile.
    for ref in _waiting.valuerefs():
        handover = ref()
        if handover is not None and handover.has_layers:
            waiting.append(handover)
        else:
            _waiting.pop(ref.key, None)
    total = sum(handover.n_bytes for handover in waiting)
    for handover in waiting:
        if total <= BYTES_IN_TRANSIT:
            return
        handover.drop()
        total -= handover.n_bytes


def handovers(doc: Doc) -> tuple[Handover, ...]:
    """RETURNS (tuple[Handover, ...]): What elmo pipes have left for a Doc as it is now, the last one last."""
    return tuple(handover for handover in _of_doc.get(doc, ()) if handover.is_of(doc))


def content(doc: Doc) -> bytes:
    """RETURNS (bytes): The words of a Doc. Two Docs have the same if and only if they have the same tokens."""
    return bytes(doc.to_array(ORTH).tobytes()) if len(doc) else b""
