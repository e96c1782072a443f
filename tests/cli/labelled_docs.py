"""A few Docs with everything that spaCy's components learn from."""

from __future__ import annotations

from pathlib import Path

from spacy.kb import InMemoryLookupKB
from spacy.tokens import Doc, DocBin, Span
from spacy.vocab import Vocab

# Word, part of speech, tag, lemma, head, dependency, entity.
SENTENCES = [
    [
        ("Anna", "PROPN", "NNP", "Anna", 1, "nsubj", "B-PER"),
        ("visited", "VERB", "VBD", "visit", 1, "ROOT", "O"),
        ("Paris", "PROPN", "NNP", "Paris", 1, "dobj", "B-LOC"),
        (".", "PUNCT", ".", ".", 1, "punct", "O"),
    ],
    [
        ("The", "DET", "DT", "the", 1, "det", "O"),
        ("banks", "NOUN", "NNS", "bank", 2, "nsubj", "O"),
        ("paid", "VERB", "VBD", "pay", 2, "ROOT", "O"),
        ("Paris", "PROPN", "NNP", "Paris", 2, "dobj", "B-PER"),
        (".", "PUNCT", ".", ".", 2, "punct", "O"),
    ],
    [
        ("Tom", "PROPN", "NNP", "Tom", 1, "nsubj", "B-PER"),
        ("likes", "VERB", "VBZ", "like", 1, "ROOT", "O"),
        ("rivers", "NOUN", "NNS", "river", 1, "dobj", "O"),
        (".", "PUNCT", ".", ".", 1, "punct", "O"),
    ],
]

MORPHS = {"NNP": "Number=Sing", "NNS": "Number=Plur", "VBD": "Tense=Past", "VBZ": "Tense=Pres"}


def labelled_docs(vocab: Vocab, n_docs: int = 12) -> list[Doc]:
    """RETURNS (list[Doc]): Each of two sentences, by turns of one category or the other."""
    docs = []
    for index in range(n_docs):
        rows, sent_starts, heads = [], [], []
        for sentence in (SENTENCES[index % 3], SENTENCES[(index + 1 + index // 3 % 2) % 3]):
            heads += [len(rows) + row[4] for row in sentence]
            sent_starts += [position == 0 for position in range(len(sentence))]
            rows += sentence
        words, pos, tags, lemmas, _, deps, entities = (list(column) for column in zip(*rows))
        doc = Doc(
            vocab,
            words=words,
            pos=pos,
            tags=tags,
            lemmas=lemmas,
            heads=heads,
            deps=deps,
            ents=entities,
            morphs=[MORPHS.get(tag, "") for tag in tags],
        )
        doc.ents = [Span(doc, ent.start, ent.end, ent.label_, kb_id=f"Q{ent.label_}") for ent in doc.ents]
        doc.spans["sc"] = [Span(doc, ent.start, ent.end, ent.label_) for ent in doc.ents]
        about_banks = float("banks" in words)
        doc.cats = {"money": about_banks, "travel": 1.0 - about_banks}
        docs.append(doc)
    return docs


def write_docs(path: Path, n_docs: int = 12) -> Path:
    """RETURNS (Path): The file, in spaCy's format."""
    DocBin(docs=labelled_docs(Vocab(), n_docs), store_user_data=True).to_disk(path)
    return path


def write_knowledge_base(path: Path) -> Path:
    """RETURNS (Path): A knowledge base that knows Paris twice, once as a person and once as a place."""
    kb = InMemoryLookupKB(Vocab(), entity_vector_length=4)
    kb.set_entities(["QPER", "QLOC"], [5, 5], [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]])
    kb.add_alias("Paris", ["QPER", "QLOC"], [0.5, 0.5])
    kb.add_alias("Anna", ["QPER"], [1.0])
    kb.add_alias("Tom", ["QPER"], [1.0])
    kb.to_disk(path)
    return path
