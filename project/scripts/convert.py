"""Labelled text to spaCy's binary format, a Doc a sentence or text.

python scripts/convert.py assets/labelled corpus

Reads train, dev and test, each as .conllu (parts of speech, features, lemmas, dependencies, and entities as name=U-PER in the last column), .iob (a token
and an IOB2 tag a line) or .jsonl (objects with "text" and "label"), or as one of these with .gz. Writes .spacy files.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import biluo_tags_to_spans, iob_to_biluo

SPLITS = ("train", "dev", "test")
# The tokenizer of all configs here: it is there for every language, also where spaCy's default needs another package.
TOKENIZER = {"nlp": {"tokenizer": {"@tokenizers": "spacy.Tokenizer.v1"}}}


def read_lines(path: Path) -> Iterator[str]:
    """YIELDS (str): The lines, without their end."""
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield line.rstrip("\n")


def blocks(path: Path) -> Iterator[list[str]]:
    """YIELDS (list[str]): The lines of each sentence; sentences end with an empty line."""
    block: list[str] = []
    for line in [*read_lines(path), ""]:
        if line:
            block.append(line)
        elif block:
            yield block
            block = []


def read_conllu(path: Path, nlp: Language) -> Iterator[Doc]:
    """YIELDS (Doc): A Doc a sentence, with what the file has."""
    for block in blocks(path):
        rows = [line.split("\t") for line in block if not line.startswith("#")]
        # Lines of several words written as one (3-4), and words that are not written at all (3.1).
        joined = {n for row in rows if "-" in row[0] for n in range(*map(int, row[0].split("-")))}
        words = [row for row in rows if row[0].isdigit()]
        after = {row[0].rpartition("-")[2]: row[9] for row in rows if "." not in row[0]}
        forms, lemmas, pos, tags, morphs, heads, deps, misc = (
            [row[column] for row in words] for column in (1, 2, 3, 4, 5, 6, 7, 9)
        )
        spaces = [int(n) not in joined and "SpaceAfter=No" not in after[n] for n in (row[0] for row in words)]
        given: dict[str, Any] = {"pos": pos, "tags": [p if t == "_" else t for t, p in zip(tags, pos)]}
        if any(lemma != "_" for lemma in lemmas):
            given["lemmas"] = lemmas
        if "_" not in heads:
            given["heads"] = [int(head) - 1 if head != "0" else index for index, head in enumerate(heads)]
            given["deps"] = ["ROOT" if dep == "root" else dep for dep in deps]
        else:
            given["sent_starts"] = [not index for index in range(len(forms))]
        if any(feature != "_" for feature in morphs):
            given["morphs"] = ["" if feature == "_" else feature for feature in morphs]
        entities = [re.search(r"(?:^|\|)(?:name|NE)=([BILU]-\w+)", column) for column in misc]
        doc = Doc(nlp.vocab, words=forms, spaces=spaces, **given)
        if any(entities) or any(column == "O" for column in misc):
            doc.set_ents(biluo_tags_to_spans(doc, [found[1] if found else "O" for found in entities]))
        yield doc


def read_iob(path: Path, nlp: Language) -> Iterator[Doc]:
    """YIELDS (Doc): A Doc a sentence, with entities."""
    for block in blocks(path):
        pairs = [line.split("\t") for line in block]
        words = [pair[0] for pair in pairs]
        doc = Doc(nlp.vocab, words=words, sent_starts=[not index for index in range(len(words))])
        doc.set_ents(biluo_tags_to_spans(doc, iob_to_biluo([pair[1] for pair in pairs])))
        yield doc


def read_jsonl(path: Path, nlp: Language) -> Iterator[Doc]:
    """YIELDS (Doc): A Doc a text, with a category of its own."""
    records = [json.loads(line) for line in read_lines(path)]
    labels = sorted({record["label"] for record in records})
    for record in records:
        doc = nlp.make_doc(record["text"])
        doc.cats = {label: float(label == record["label"]) for label in labels}
        yield doc


READERS: dict[str, Callable[[Path, Language], Iterator[Doc]]] = {
    ".conllu": read_conllu,
    ".iob": read_iob,
    ".jsonl": read_jsonl,
}


def find_split(directory: Path, split: str) -> Path:
    """RETURNS (Path): The file of a split."""
    known = [f"{split}{suffix}{gz}" for suffix in READERS for gz in ("", ".gz")]
    found = [directory / name for name in known if (directory / name).is_file()]
    if len(found) != 1:
        there = ", ".join(path.name for path in found) or "none"
        sys.exit(f"{directory} must have one of {', '.join(known)}; there is {there}. Correct [vars] of project.yml.")
    return found[0]


def read_docs(path: Path, lang: str = "en") -> list[Doc]:
    """Read labelled text.

    path (Path): A file with one of the suffixes of `READERS`, or this and .gz.
    lang (str): Whose rules split texts that are not split.
    RETURNS (list[Doc]): A Doc a sentence or text; there is at least one.
    """
    docs = list(READERS[Path(path.name.removesuffix(".gz")).suffix](path, spacy.blank(lang, config=TOKENIZER)))
    if not docs:
        sys.exit(f"There is nothing to read in {path}.")
    return docs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--lang", default="en", help="whose rules split texts that are not split (default: en)")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        docs = read_docs(find_split(arguments.source, split), arguments.lang)
        DocBin(docs=docs).to_disk(arguments.output / f"{split}.spacy")
        print(f"{len(docs):,} Docs in {split}.spacy")
