"""The factory "elmo". spaCy imports this module for every nlp object, so it imports as little as it can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spacy.language import Language
from spacy.tokens import Doc
from thinc.api import Config, Model
from thinc.types import Floats3d

# These put the names into spaCy's registries that the default config mentions.
from ..layers import bilm_model, scalar_mix  # noqa: F401
from . import sentences  # noqa: F401

if TYPE_CHECKING:
    from .component import Elmo

DEFAULT_ELMO_CONFIG = """
[elmo]
layer_weights = null
gamma = 1.0
store = "mixed"
half = false
frozen = true

[elmo.model]
@architectures = "spacy_elmo.BiLM.v1"
source = null
max_batch_words = 8192
initial_state = null
dtype = "float32"

[elmo.model.get_spans]
@misc = "spacy_elmo.sentence_spans.v1"
max_words = null
"""


@Language.factory(
    "elmo",
    assigns=["doc._.elmo", "doc._.elmo_layers", "span._.elmo", "token._.elmo", "doc.tensor"],
    default_config=Config().from_str(DEFAULT_ELMO_CONFIG)["elmo"],
)
def make_elmo(
    nlp: Language,
    name: str,
    model: Model[list[Doc], list[Floats3d]],
    layer_weights: list[float] | int | None,
    gamma: float,
    store: str,
    half: bool,
    frozen: bool,
) -> Elmo:
    """Build the component that gives every token its ELMo vector.

    model (Model[list[Doc], list[Floats3d]]): The biLM, `spacy_elmo.BiLM.v1`.
    layer_weights (list[float] | int | None): The mix of layers for `token._.elmo`: the share of each layer, layer 0
        (without context) first; they are divided by their sum. A single number is the one layer to take. Default: equal
        shares.
    gamma (float): Common factor of the mix.
    store (str): What a Doc keeps. "mixed": the mixed vectors, for `._.elmo` and `doc.tensor`. "layers": all layers
        besides, for `doc._.elmo_layers`. "none": nothing.
    half (bool): Keep float16 in place of float32; half the memory, about three digits. `doc.tensor` stays float32.
    frozen (bool): Whether the biLM stays as it is in training.
    RETURNS (Elmo): The component.
    RAISES (ConfigError): E300, E301 if a setting cannot be. (PipelineError): E306 if another extension has our name.
    """
    from .component import Elmo

    return Elmo(nlp.vocab, model, name, layer_weights=layer_weights, gamma=gamma, store=store, half=half, frozen=frozen)
