"""From a training run to a small model directory: half precision, scored on held-out text, with a model card.

python project/scripts/publish_model.py RUN OUTPUT --held-out valid.txt.gz test.txt.gz --about about.md

Beside a text `valid.txt.gz`, a table `valid.docs.tsv.gz` may tell which lines are of which domain, by its columns `first_line`,
from 0, `n_lines` and `domain`: then each domain is scored by itself, too.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from pathlib import Path
from typing import Any

from spacy_elmo.errors import ElmoError
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.softmax import OutputHead
from spacy_elmo.pretraining.checkpoint import BEST, newest_progress, read_checkpoint
from spacy_elmo.pretraining.corpus import Corpus
from spacy_elmo.pretraining.evaluate import Perplexity, combined, perplexity
from spacy_elmo.pretraining.run_directory import CHECKPOINTS
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.weights.files import sha256_of
from spacy_elmo.weights.formats import load_model
from spacy_elmo.weights.native import SOFTMAX_FILE, VOCABULARY_FILE, WEIGHTS_FILE, save_bilm, save_head


def load_run(run: Path) -> tuple[BiLM, OutputHead, Vocabulary, dict[str, Any]]:
    """RETURNS (tuple): The weights of a finished run, which are those of its best evaluation, its softmax, its vocabulary, and
    how far it had come then."""
    model, progress = load_model(run, with_softmax=True), newest_progress(run / CHECKPOINTS)
    if model.head is None or model.vocabulary is None or progress is None:
        sys.exit(f"{run} is no finished run. Give the directory of one of `pretrain`.")
    plateau = progress["plateau"]
    if plateau["best"] is not None and plateau["best_step"] != progress["step"]:
        best = read_checkpoint(run / CHECKPOINTS / BEST)
        if best is None or best.progress["step"] != plateau["best_step"]:
            sys.exit(f"{run / CHECKPOINTS / BEST} does not hold the best weights, of step {plateau['best_step']}.")
        progress = best.progress
    return model.bilm, model.head.requires_grad_(False), Vocabulary(model.vocabulary), progress


def by_domain(text: Path) -> dict[str, list[list[str]]]:
    """RETURNS (dict): The sentences of a text by their domain; all under "" where nothing tells of domains."""
    sentences = list(Corpus.find([text]).sentences())
    table = text.with_name(f"{text.name.split('.')[0]}.docs.tsv.gz")
    if not table.exists():
        return {"": sentences}
    with gzip.open(table, "rt", encoding="utf-8", newline="") as file:
        documents = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    lines = sum(int(document["n_lines"]) for document in documents)
    if lines != len(sentences):
        sys.exit(f"{table} tells of {lines:,} lines, {text} has {len(sentences):,} that are not empty.")
    found: dict[str, list[list[str]]] = {}
    for document in documents:
        first = int(document["first_line"])
        found.setdefault(document["domain"], []).extend(sentences[first : first + int(document["n_lines"])])
    return found


def score(bilm: BiLM, head: OutputHead, vocabulary: Vocabulary, text: Path) -> dict[str, Perplexity]:
    """RETURNS (dict): Perplexity by what is scored: the whole text by its name, then each domain if there are several."""
    of_domains = {
        domain: perplexity(bilm, head, vocabulary, sentences) for domain, sentences in by_domain(text).items()
    }
    named = {f"{text.name}, {domain}": found for domain, found in sorted(of_domains.items())}
    return {text.name: combined(of_domains.values()), **(named if len(named) > 1 else {})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--held-out", type=Path, nargs="*", default=[], help="text to score, each file by itself")
    parser.add_argument("--about", type=Path, help="Markdown that opens the card: data, licence, use, limits")
    arguments = parser.parse_args()
    bilm, head, vocabulary, progress = load_run(arguments.run)
    # What is published is scored: the weights as they are in half precision.
    bilm.half().float()
    head.half().float()
    scores = {name: s for text in arguments.held_out for name, s in score(bilm, head, vocabulary, text).items()}
    save_bilm(bilm, arguments.output, half=True)
    save_head(head, arguments.output, half=True)
    vocabulary.save(arguments.output / VOCABULARY_FILE)
    digests = {name: sha256_of(arguments.output / name) for name in (WEIGHTS_FILE, SOFTMAX_FILE, VOCABULARY_FILE)}
    lines = [arguments.about.read_text(encoding="utf-8").rstrip() if arguments.about else f"# {arguments.output.name}"]
    share = progress["words"] / (progress["words_an_epoch"] or 1)
    lines += ["", "## Training", "", f"- steps: {progress['step']:,}"]
    lines += [f"- words read: {progress['words']:,} ({share:.2f} passes over the corpus)"]
    lines += [f"- vocabulary of the softmax: {len(vocabulary):,}", f"- settings: `{json.dumps(progress['settings'])}`"]
    lines += [
        f"- architecture: `{json.dumps(progress['config'])}`",
        f"- parameters: {sum(p.numel() for p in bilm.parameters()):,}",
    ]
    lines += [f"- {name}: sha256 `{digest}`" for name, digest in digests.items()]
    lines += ["- weights are float16", "", "## Held-out perplexity", ""]
    lines += ["Full softmax; every word and one boundary a sentence, in each direction.", ""]
    lines += ["| text | forward | backward | joint | predicted |", "|---|---|---|---|---|"]
    lines += [
        f"| {name} | {s.forward:.1f} | {s.backward:.1f} | {s.joint:.1f} | {s.words:,} |" for name, s in scores.items()
    ]
    (arguments.output / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    try:
        main()
    except ElmoError as error:
        sys.exit(str(error))
