"""Every trainable component of spaCy learns from its own mix of the layers of an elmo pipe."""

from __future__ import annotations

from typing import Any

import pytest
from spacy.language import Language
from spacy.tokens import Doc
from thinc.api import fix_random_seed

from tests.pipeline.toy_data import COMPONENTS, SENTENCES, add_listening, make_examples, train


def make_pipeline(make_nlp, factory: str, **listener: Any) -> Language:
    nlp = make_nlp()
    if factory == "entity_linker":
        nlp.add_pipe("entity_ruler", first=True)
        nlp.add_pipe("sentencizer", first=True)
    fix_random_seed(0)
    add_listening(nlp, factory, layer_norm="token", **listener)
    return nlp


def annotations(doc: Doc, factory: str) -> Any:
    read = {
        "tagger": lambda: [token.tag_ for token in doc],
        "morphologizer": lambda: [(token.pos_, str(token.morph)) for token in doc],
        "trainable_lemmatizer": lambda: [token.lemma_ for token in doc],
        "senter": lambda: [token.is_sent_start for token in doc],
        "parser": lambda: [(token.head.i, token.dep_) for token in doc],
        "ner": lambda: [(entity.text, entity.label_) for entity in doc.ents],
        "spancat": lambda: [(span.text, span.label_) for span in doc.spans["sc"]],
        "textcat": lambda: {label: round(score) for label, score in doc.cats.items()},
        "textcat_multilabel": lambda: {label: round(score) for label, score in doc.cats.items()},
        "entity_linker": lambda: [entity.kb_id_ for entity in doc.ents if entity.text == "Anna"],
    }
    return read[factory]()


@pytest.mark.parametrize(
    ("factory", "width"), [*((factory, None) for factory in COMPONENTS), ("tagger", 12), ("entity_linker", 12)]
)
def test_component_learns_its_examples_by_heart(make_nlp, factory: str, width: int | None):
    nlp = make_pipeline(make_nlp, factory, width=width)
    examples = make_examples(nlp)
    train(nlp, examples, steps=60, annotates=["sentencizer"] if factory == "entity_linker" else [])
    if factory == "entity_linker":
        nlp.get_pipe("entity_ruler").add_patterns([{"label": "PERSON", "pattern": "Anna"}])
    docs = list(nlp.pipe([" ".join(sentence["words"]) for sentence in SENTENCES]))
    assert [annotations(doc, factory) for doc in docs] == [annotations(eg.reference, factory) for eg in examples]
