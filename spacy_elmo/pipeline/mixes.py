"""What the components of a pipeline have learned about the layers of ELMo."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from spacy.language import Language
from thinc.api import Model

from ..layers.scalar_mix import is_mix, layer_shares

PLACES = {"elmo_input": "input", "elmo_output": "output"}


class LayerMix(NamedTuple):
    """The mix of layers of one component, at one place of its network.

    component (str): Name of the component.
    place (str | None): "input" or "output" of the encoder of a spacy_elmo.ElmoTok2Vec.v1; None elsewhere.
    shares (list[float]): How much of each layer is in the mix, layer 0 (without context) first; their sum is 1.
    gamma (float): The common factor.
    """

    component: str
    place: str | None
    shares: list[float]
    gamma: float

    @property
    def title(self) -> str:
        """The component, and the place if there is one."""
        return self.component if self.place is None else f"{self.component} ({self.place})"


def layer_mixes(nlp: Language) -> list[LayerMix]:
    """Tell how each component mixes the layers of ELMo. What was not trained or loaded yet has no mix.

    nlp (Language): The pipeline.
    RETURNS (list[LayerMix]): In the order of the pipeline.
    """
    mixes = []
    for name, component in nlp.components:
        for place, mix in _mixes(getattr(component, "model", None)):
            shares = [float(share) for share in layer_shares(mix)]
            mixes.append(LayerMix(name, place, shares, float(mix.get_param("gamma")[0])))
    return mixes


def _mixes(model: object) -> Iterator[tuple[str | None, Model[Any, Any]]]:
    """The mixes in a model, and their places."""
    if not isinstance(model, Model):
        return
    nodes = list(model.walk(order="dfs_pre"))
    places: dict[int, str] = {}
    for node in nodes:
        for ref, place in PLACES.items():
            placed = node.maybe_get_ref(ref)
            for below in () if placed is None else placed.walk():
                places[id(below)] = place
    for node in nodes:
        if is_mix(node) and node.has_param("W"):
            yield places.get(id(node)), node
