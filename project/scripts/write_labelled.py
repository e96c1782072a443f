"""From templates to labelled sentences: CoNLL-U with parts of speech, and with named entities in the last column.

python scripts/write_labelled.py assets/templates.txt assets/labelled
"""

from __future__ import annotations

import argparse
import random
import re
from pathlib import Path

SIZES = {"train": 300, "dev": 100, "test": 100}

# A word, its part of speech, its entity tag.
Token = tuple[str, str, str]
Vocabulary = dict[str, list[list[tuple[str, str]]]]

VOWELS = tuple("aeiou")
POS = {"person_noun": "NOUN", "thing": "NOUN", "adjective": "ADJ", "number": "NUM"}


def read_templates(path: Path) -> tuple[dict[str, list[str]], list[str]]:
    """RETURNS (tuple): The entries of each list, and the templates."""
    sections: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if title := re.fullmatch(r"\[(\w+)\]", line):
            entries = sections.setdefault(title[1], [])
        elif line and not line.startswith("#"):
            entries.extend([line] if "templates" in sections else line.split())
    templates = sections.pop("templates")
    return sections, templates


def vocabulary_of(split: str, sections: dict[str, list[str]]) -> Vocabulary:
    """Half of each list for training, the other half for dev and test; what has a star is for all."""
    vocabulary: Vocabulary = {}
    for name, entries in sections.items():
        kept = [e for i, e in enumerate(entries) if e.endswith("*") or (i % 2 == 0) == (split == "train")]
        vocabulary[name] = [_words(entry.rstrip("*"), POS.get(name, "PROPN")) for entry in kept]
    return vocabulary


def _words(entry: str, pos: str) -> list[tuple[str, str]]:
    parts = [part.partition("/") for part in entry.split("_")]
    return [(word, tag or ("CCONJ" if word == "&" else pos)) for word, _, tag in parts]


def fill(template: str, vocabulary: Vocabulary, generator: random.Random) -> list[Token]:
    """RETURNS (list[Token]): A sentence; no list entry is used twice in it."""
    tokens: list[Token] = []
    used: list[list[tuple[str, str]]] = []
    for part in template.split():
        if part.startswith("["):
            part = generator.choice(part[1:-1].split("|"))
        slot = re.fullmatch(r"\{(\w+)(?::([A-Z]+)(\+?))?\}(?:s/NOUN)?", part)
        if slot is None:
            word, _, pos = part.rpartition("/")
            tokens.append((word, pos, "O"))
            continue
        words = generator.choice([entry for entry in vocabulary[slot[1]] if entry not in used])
        used.append(words)
        if part.endswith("s/NOUN"):
            words = [(f"{word}s", pos) for word, pos in words]
        for index, (word, pos) in enumerate(words):
            begins = "I" if index or slot[3] else "B"
            tokens.append((word, pos, f"{begins}-{slot[2]}" if slot[2] else "O"))
    followers = [word for word, _, _ in tokens[1:]] + [""]
    tokens = [
        ("an" if word == "a" and follower.startswith(VOWELS) else word, pos, entity)
        for (word, pos, entity), follower in zip(tokens, followers)
    ]
    first, pos, entity = tokens[0]
    return [(first[0].upper() + first[1:], pos, entity), *tokens[1:]]


def to_bilou(tokens: list[Token]) -> list[Token]:
    """spaCy reads entities of CoNLL-U in BILOU."""
    following = [entity for _, _, entity in tokens[1:]] + ["O"]
    changed = []
    for (word, pos, entity), after in zip(tokens, following):
        if entity != "O" and not after.startswith("I"):
            entity = entity.replace("B-", "U-").replace("I-", "L-")
        changed.append((word, pos, entity))
    return changed


def to_conllu(tokens: list[Token]) -> str:
    """RETURNS (str): The lines of a sentence."""
    lines = [f"# text = {' '.join(word for word, _, _ in tokens)}"]
    for number, (word, pos, entity) in enumerate(tokens, start=1):
        columns = (number, word, "_", pos, "_", "_", "_", "_", "_", "O" if entity == "O" else f"name={entity}")
        lines.append("\t".join(str(column) for column in columns))
    return "\n".join(lines) + "\n\n"


def write_labelled(templates_path: Path, output: Path, seed: int = 0) -> None:
    """Write train.conllu, dev.conllu and test.conllu; no sentence occurs twice."""
    sections, templates = read_templates(templates_path)
    generator = random.Random(seed)
    seen = set()
    output.mkdir(parents=True, exist_ok=True)
    for split, size in SIZES.items():
        vocabulary = vocabulary_of(split, sections)
        sentences: list[str] = []
        while len(sentences) < size:
            tokens = fill(templates[len(sentences) % len(templates)], vocabulary, generator)
            sentence = to_conllu(to_bilou(tokens))
            if sentence not in seen:
                seen.add(sentence)
                sentences.append(sentence)
        (output / f"{split}.conllu").write_text("".join(sentences), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("templates", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    write_labelled(arguments.templates, arguments.output)
