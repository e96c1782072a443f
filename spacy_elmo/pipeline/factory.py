"""The factory "elmo". spaCy imports this module for every nlp object, so it imports as little as it can."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacy.language import Language
from spacy.tokens import Doc
from thinc.api import Config, Model
from thinc.types import Floats3d

# These put the names into spaCy's registries that the default config mentions.
from ..layers import bilm_model, bilstm_encoder, listener, own_elmo, scalar_mix, schedules, tok2vec  # noqa: F401
from ..layers.shim import FineTuning
from . import sentences, unfreezing  # noqa: F401

if TYPE_CHECKING:
    from .component import Elmo

DEFAULT_ELMO_CONFIG = """
[elmo]
layer_weights = null
gamma = 1.0
store = "mixed"
half = false
surprisal = false
frozen = true
lr_scale = 1.0
max_grad_norm = 1.0
bfloat16 = false
cache_bytes = 1073741824
cache_directory = null
cache_directory_bytes = null
cache_half = false

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
    surprisal: bool,
    frozen: bool,
    lr_scale: float | list[float],
    max_grad_norm: float | None,
    bfloat16: bool,
    cache_bytes: int,
    cache_directory: Path | None,
    cache_directory_bytes: int | None,
    cache_half: bool,
) -> Elmo:
    """Build the component that gives every token its ELMo vector.

    model (Model[list[Doc], list[Floats3d]]): The biLM, `spacy_elmo.BiLM.v1`.
    layer_weights (list[float] | int | None): The mix of layers for `token._.elmo`: the share of each layer, layer 0 (without
        context) first; they are divided by their sum. A single number is the one layer to take. Default: equal shares.
    gamma (float): Common factor of the mix.
    store (str): What a Doc keeps. "mixed": the mixed vectors, for `._.elmo` and `doc.tensor`. "layers": all layers
        besides, for `doc._.elmo_layers`. "none": nothing.
    half (bool): Keep float16 in place of float32; half the memory, about three digits. `doc.tensor` stays float32.
    surprisal (bool): Tell how unexpected each token is, for `token._.elmo_surprisal`, see `surprisal.Surprisal`. The weights must
        have their softmax.
    frozen (bool): Whether the biLM stays as it is in training. Then its layers are remembered from the first update on.
    lr_scale (float | list[float]): Unless it is frozen, a factor of the learning rate, or one for each layer, layer 0 first.
    max_grad_norm (float | None): Unless it is frozen, the bound of the norm of the gradient of all its weights together.
    bfloat16 (bool): Unless it is frozen, train it in mixed precision, where the GPU has bfloat16.
    cache_bytes (int): Memory for layers that are remembered; 0 for none.
    cache_directory (Path | None): Where layers are remembered on disk, for later runs too. Default: nowhere.
    cache_directory_bytes (int | None): Bound of that directory.
    cache_half (bool): Remember float16.
    RETURNS (Elmo): The component.
    RAISES (ConfigError): E300 if a setting cannot be. (PipelineError): E306 if another extension has our name.
    """
    from .component import Elmo
    from .feature_cache import FeatureCache
    from .surprisal import build_surprisal

    fine_tuning = FineTuning(lr_scale, max_grad_norm, bfloat16)
    cache = FeatureCache(cache_bytes, cache_directory, max_disk_bytes=cache_directory_bytes, half=cache_half)
    settings: dict[str, Any] = {"layer_weights": layer_weights, "gamma": gamma, "store": store, "half": half}
    settings["fine_tuning"] = None if frozen else fine_tuning
    settings["cache"] = cache if cache_bytes or cache_directory else None
    pipe = Elmo(nlp.vocab, model, name, **settings)
    pipe.note_pipeline(nlp)
    pipe.surprisal = build_surprisal(name, surprisal)
    return pipe
