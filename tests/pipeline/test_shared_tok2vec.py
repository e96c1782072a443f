"""ELMo and spaCy's own `tok2vec` pipe in one pipeline: one within the other, and one beside the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.training import Example

from spacy_elmo.pipeline.mixes import layer_mixes
from tests.pipeline.conftest import MakeNlp

WIDTH = 8
LISTENER = {"@architectures": "spacy_elmo.ElmoListener.v1", "dropout": 0.0}
SHARED = {"@architectures": "spacy.Tok2VecListener.v1", "width": WIDTH, "upstream": "tok2vec"}
EMBED = {"@architectures": "spacy.MultiHashEmbed.v2", "attrs": ["NORM"], "rows": [20], "include_static_vectors": False}
ENCODE = {"@architectures": "spacy.MaxoutWindowEncoder.v2", "depth": 1, "window_size": 1, "maxout_pieces": 2}
SENTENCES = [("Anna paid Tom", "N V N"), ("a bank paid", "D N V"), ("Tom sat", "N V")]


def embedding() -> dict[str, Any]:
    return {"embed": {**EMBED, "width": WIDTH}, "encode": {**ENCODE, "width": WIDTH}}


def within(nlp: Language) -> None:
    """The tok2vec pipe learns from ELMo, and others learn from it."""
    model = {"@architectures": "spacy_elmo.ElmoTok2Vec.v1", **embedding(), "elmo_input": LISTENER, "elmo_output": None}
    nlp.add_pipe("tok2vec", config={"model": model})
    nlp.add_pipe("tagger", config={"model": {"tok2vec": SHARED}})
    nlp.add_pipe("morphologizer", config={"model": {"tok2vec": SHARED}})


def beside(nlp: Language) -> None:
    """Components learn from what the tok2vec pipe gives them, with ELMo beside it, each with a mix of its own."""
    nlp.add_pipe("tok2vec", config={"model": {"@architectures": "spacy.Tok2Vec.v2", **embedding()}})
    model = {"@architectures": "spacy_elmo.ElmoTok2Vec.v1", "embed": SHARED, "encode": None, "elmo_output": None}
    for name in ("tagger", "morphologizer"):
        nlp.add_pipe(name, config={"model": {"tok2vec": {**model, "elmo_input": LISTENER}}})


@pytest.mark.parametrize(("build", "mixed"), [(within, ["tok2vec"]), (beside, ["tagger", "morphologizer"])])
def test_it_trains_and_is_saved(build: Any, mixed: list[str], make_nlp: MakeNlp, tmp_path: Any):
    nlp = make_nlp()
    build(nlp)
    examples = []
    for text, tags in SENTENCES:
        reference = {"words": text.split(), "tags": tags.split(), "pos": ["X"] * len(tags.split())}
        examples.append(Example.from_dict(nlp.make_doc(text), reference))
    optimizer = nlp.initialize(lambda: examples)
    before = {node.id: node.get_param("gamma").copy() for node in _mixes(nlp)}
    losses = [nlp.update(examples, sgd=optimizer)["tagger"] for _ in range(40)]
    assert losses[-1] < 0.7 * losses[0]
    assert all(not np.allclose(node.get_param("gamma"), before[node.id]) for node in _mixes(nlp))
    assert [mix.component for mix in layer_mixes(nlp)] == mixed
    nlp.to_disk(tmp_path)
    texts = ["Anna paid", "", "the bank sat"]
    for doc, again in zip(nlp.pipe(texts), spacy.load(tmp_path).pipe(texts)):
        assert [token.tag_ for token in doc] == [token.tag_ for token in again]


def _mixes(nlp: Language) -> list[Any]:
    pipes = [pipe for name, pipe in nlp.pipeline if name != "elmo"]
    return [node for pipe in pipes for node in pipe.model.walk() if node.name == "scalar_mix"]
