"""A few sentences with every annotation, and pipelines whose components listen to an elmo pipe."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from spacy.kb import InMemoryLookupKB
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Optimizer, fix_random_seed

TAGS = {"D": "DET", "N": "NOUN", "V": "VERB", "P": "PRON", ".": "PUNCT"}

# Words, tags, heads, labels of the arcs, starts of sentences, entities and the category of each text.
SENTENCES: list[dict[str, Any]] = [
    {
        "words": ["the", "bank", "paid", "Anna"],
        "tags": ["D", "N", "V", "P"],
        "heads": [1, 2, 2, 2],
        "deps": ["det", "nsubj", "ROOT", "obj"],
        "sent_starts": [1, -1, -1, -1],
        "entities": ["O", "U-ORG", "O", "U-PERSON"],
        "lemmas": ["the", "bank", "pay", "Anna"],
        "cats": {"money": 1.0, "river": 0.0},
    },
    {
        "words": ["Anna", "sat", ".", "the", "river", "bent", "."],
        "tags": ["P", "V", ".", "D", "N", "V", "."],
        "heads": [1, 1, 1, 4, 5, 5, 5],
        "deps": ["nsubj", "ROOT", "punct", "det", "nsubj", "ROOT", "punct"],
        "sent_starts": [1, -1, -1, 1, -1, -1, -1],
        "entities": ["U-PERSON", "O", "O", "O", "O", "O", "O"],
        "lemmas": ["Anna", "sit", ".", "the", "river", "bend", "."],
        "cats": {"money": 0.0, "river": 1.0},
    },
]

# What spaCy's factories need so that a few examples are enough.
SETTINGS: dict[str, dict[str, Any]] = {
    "trainable_lemmatizer": {"min_tree_freq": 1},
    "parser": {"min_action_freq": 1},
    "spancat": {"suggester": {"@misc": "spacy.ngram_suggester.v1", "sizes": [1]}},
    "entity_linker": {"entity_vector_length": 3, "incl_prior": False},
}
COMPONENTS = (
    "tagger", "morphologizer", "trainable_lemmatizer", "senter", "parser", "ner", "spancat", "textcat", "textcat_multilabel",
    "entity_linker",
)  # fmt: skip


def add_listening(nlp: Language, factory: str, name: str | None = None, **listener: Any) -> Any:
    """Add a component that reads ELMo in the place of its own tok2vec; without dropout, unless told otherwise."""
    model = copy.deepcopy(dict(nlp.get_factory_meta(factory).default_config["model"]))
    model["tok2vec"] = {"@architectures": "spacy_elmo.ElmoListener.v1", "dropout": 0.0, **listener}
    pipe = nlp.add_pipe(factory, name or factory, config={"model": model, **SETTINGS.get(factory, {})})
    if factory == "entity_linker":
        pipe.set_kb(make_kb)
    return pipe


def make_kb(vocab: Any) -> InMemoryLookupKB:
    """Two that are called Anna."""
    kb = InMemoryLookupKB(vocab, entity_vector_length=3)
    kb.add_entity("Q1", freq=1, entity_vector=[1.0, 0.0, 0.0])
    kb.add_entity("Q2", freq=1, entity_vector=[0.0, 1.0, 0.0])
    kb.add_alias("Anna", ["Q1", "Q2"], [0.5, 0.5])
    return kb


def make_examples(nlp: Language) -> list[Example]:
    """The sentences, and an empty text between them where the annotation allows it."""
    examples = []
    for identity, sentence in zip(("Q1", "Q2"), SENTENCES):
        words, tags = sentence["words"], sentence["tags"]
        annotation = {**sentence, "pos": [TAGS[tag] for tag in tags], "morphs": [f"Tag={tag}" for tag in tags]}
        position = words.index("Anna")
        start = len(" ".join([*words[:position], ""]))
        annotation["links"] = {(start, start + 4): {identity: 1.0, "Q3": 0.0}}
        spans = [(start, start + 4, "PERSON")]
        annotation["spans"] = {"sc": spans}
        predicted = nlp.make_doc(" ".join(words))
        examples.append(Example.from_dict(predicted, annotation))
    return examples


def train(nlp: Language, examples: list[Example], steps: int, rate: float = 0.02, **options: Any) -> dict[str, float]:
    """Initialize and train, always in the same way; the losses of the last step come back."""
    fix_random_seed(0)
    optimizer: Optimizer = nlp.initialize(lambda: examples)
    optimizer.learn_rate = rate
    losses: dict[str, float] = {}
    for _ in range(steps):
        losses = nlp.update(examples, sgd=optimizer, **options)
    return losses


def make_listening(make_nlp: Callable[..., Language], steps: int = 2, **settings: Any) -> Language:
    """A trained pipeline of an elmo pipe with these settings and of a tagger and an ner that listen to it."""
    nlp = make_nlp(**settings)
    for name in ("tagger", "ner"):
        add_listening(nlp, name)
    train(nlp, make_examples(nlp), steps=steps)
    return nlp


def outcome(doc: Doc) -> Any:
    """What the components have found."""
    return [(token.text, token.tag_, token.ent_type_) for token in doc]
