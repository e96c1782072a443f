"""A table of what ELMo is worth, from the scores of the pipelines with and without it, and of the layers they prefer.

python scripts/compare.py training
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import spacy

from spacy_elmo.pipeline.mixes import layer_mixes

SCORES = {"ner": ("ents_f", "named entities, F1"), "tagger": ("tag_acc", "parts of speech, accuracy")}


def compare(training: Path) -> dict[str, Any]:
    """RETURNS (dict): For each task the score without and with ELMo, from 0 to 1, and the mix of layers."""
    found = {}
    for task, (key, title) in SCORES.items():
        scores = {}
        for system, name in (("baseline", f"{task}_baseline"), ("elmo", task)):
            path = training / name / "scores.json"
            if not path.is_file():
                sys.exit(f"There is no file {path}. Run the command evaluate first.")
            scores[system] = json.loads(path.read_text(encoding="utf-8"))[key]
        mixes = [mix._asdict() for mix in layer_mixes(spacy.load(training / task / "model-best"))]
        found[task] = {"title": title, **scores, "mixes": mixes}
    return found


def to_markdown(found: dict[str, Any]) -> str:
    """RETURNS (str): Two tables: scores in percent, and mixes."""
    lines = ["| | spaCy's default features | ELMo | difference |", "|---|---|---|---|"]
    for task in found.values():
        baseline, elmo = 100 * task["baseline"], 100 * task["elmo"]
        lines.append(f"| {task['title']} | {baseline:.2f} | {elmo:.2f} | {elmo - baseline:+.2f} |")
    mixes = [mix for task in found.values() for mix in task["mixes"]]
    n_layers = max(len(mix["shares"]) for mix in mixes)
    names = [f"layer {layer}" for layer in range(n_layers)]
    lines += ["", f"| mix of | {' | '.join(names)} | gamma |", "|---|" + "---|" * (n_layers + 1)]
    for mix in mixes:
        shares = " | ".join(f"{share:.3f}" for share in mix["shares"])
        lines.append(f"| {mix['component']} ({mix['place']}) | {shares} | {mix['gamma']:.3f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    directory = Path(sys.argv[1])
    comparison = compare(directory)
    text = to_markdown(comparison)
    (directory / "comparison.json").write_text(json.dumps(comparison, indent=2) + "\n", encoding="utf-8")
    (directory / "comparison.md").write_text(text, encoding="utf-8")
    print(text)
