"""`layer_mixes`: what components have learned about layers, and where in their network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.training import Example

from spacy_elmo.pipeline.mixes import LayerMix, layer_mixes
from tests.pipeline.conftest import MakeNlp

LISTENER = {"@architectures": "spacy_elmo.ElmoListener.v1"}
EXAMPLE = {"words": ["Anna", "paid"], "tags": ["N", "V"]}


def tok2vec(elmo_input: dict[str, Any] | None, elmo_output: dict[str, Any] | None) -> dict[str, Any]:
    hashes = {"@architectures": "spacy.MultiHashEmbed.v2", "width": 8, "attrs": ["NORM"], "rows": [20]}
    window = {"@architectures": "spacy.MaxoutWindowEncoder.v2", "width": 8, "depth": 1, "window_size": 1}
    return {
        "@architectures": "spacy_elmo.ElmoTok2Vec.v1",
        "embed": {**hashes, "include_static_vectors": False},
        "encode": {**window, "maxout_pieces": 2},
        "elmo_input": elmo_input,
        "elmo_output": elmo_output,
    }


@pytest.fixture
def nlp(make_nlp: MakeNlp) -> Language:
    """Three taggers: with ELMo alone, at both places of an encoder, and without ELMo."""
    nlp = make_nlp()
    nlp.add_pipe("tagger", "alone", config={"model": {"tok2vec": {**LISTENER, "gamma": 2.0}}})
    nlp.add_pipe("tagger", "placed", config={"model": {"tok2vec": tok2vec(LISTENER, LISTENER)}})
    nlp.add_pipe("tagger", "without")
    doc = nlp.make_doc("Anna paid")
    nlp.initialize(lambda: [Example.from_dict(doc, EXAMPLE)])
    return nlp


def test_untrained_mixes_are_even(nlp: Language):
    assert [(mix.component, mix.place) for mix in layer_mixes(nlp)] == [
        ("alone", None),
        ("placed", "input"),
        ("placed", "output"),
    ]
    assert all(mix.shares == [pytest.approx(1 / 3)] * 3 for mix in layer_mixes(nlp))
    assert [mix.gamma for mix in layer_mixes(nlp)] == [2.0, 1.0, 1.0]


def test_shares_are_those_of_the_weights(nlp: Language):
    (mix,) = (node for node in nlp.get_pipe("alone").model.walk() if node.name == "scalar_mix")
    mix.set_param("W", np.log(np.asarray([0.5, 0.3, 0.2], dtype=np.float32)))
    assert layer_mixes(nlp)[0] == LayerMix("alone", None, [pytest.approx(share) for share in (0.5, 0.3, 0.2)], 2.0)


def test_mixes_are_those_of_the_saved_pipeline(nlp: Language, tmp_path: Any):
    nlp.get_pipe("placed").model.get_ref("tok2vec").get_ref("elmo_output").layers[1].set_param(
        "gamma", np.asarray([3.0], dtype=np.float32)
    )
    nlp.to_disk(tmp_path)
    assert layer_mixes(spacy.load(tmp_path)) == layer_mixes(nlp)
    assert layer_mixes(nlp)[2].gamma == 3.0


def test_mixes_stay_when_listeners_are_replaced(nlp: Language):
    before = layer_mixes(nlp)
    nlp.replace_listeners("elmo", "alone", ["model.tok2vec"])
    assert layer_mixes(nlp) == before


def test_what_is_not_initialized_has_no_mix(make_nlp: MakeNlp):
    nlp = make_nlp()
    nlp.add_pipe("tagger", config={"model": {"tok2vec": LISTENER}})
    assert layer_mixes(nlp) == []


def test_titles():
    assert LayerMix("ner", None, [1.0], 1.0).title == "ner"
    assert LayerMix("ner", "output", [1.0], 1.0).title == "ner (output)"
