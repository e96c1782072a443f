"""What ELMo is worth, over tasks, amounts of data and seeds: the same pipelines with it and with spaCy's default features.

python scripts/learning_curves.py ../../shared/data training/curves --tasks ner-ewt xpos --fractions 0.05 1 --seeds 0 1 2

Each run leaves a file in OUTPUT/runs and is not run again while that is there, so that the program can be stopped and
started, with other runs too. OUTPUT/scores.md and scores.json sum up all that are there: scores on the test set, of the
state of the training that was best on the dev set. Words are those of the data, a Doc is a sentence.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import spacy
from convert import SPLITS, find_split, read_docs
from make_configs import baseline_config, elmo_config
from spacy.cli._util import setup_gpu
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import resolve_dot_names
from thinc.api import Config

from spacy_elmo.pipeline.mixes import layer_mixes

FEWEST = 10
"""Sentences that a share of the data has at least."""


class Task(NamedTuple):
    """What is learned from which data.

    component (str): Factory of the component.
    directory (str): Where the data are.
    score (str): What is reported, from 0 to 1.
    pos_as_tag (bool): Whether the tagger learns UPOS in place of XPOS.
    lang (str): Code of the language.
    """

    component: str
    directory: str
    score: str
    pos_as_tag: bool = False
    lang: str = "en"


TASKS = {
    "ner-ewt": Task("ner", "ner_uner_ewt", "ents_f"),
    "ner-wnut": Task("ner", "ner_wnut17", "ents_f"),
    "xpos": Task("tagger", "ud_english_ewt", "tag_acc"),
    "upos": Task("tagger", "ud_english_ewt", "tag_acc", pos_as_tag=True),
    "upos-ko": Task("tagger", "ud_korean_gsd", "tag_acc", pos_as_tag=True, lang="ko"),
    "sst5": Task("textcat", "cat_sst5", "cats_micro_f"),
    "polarity": Task("textcat", "cat_sentence_polarity", "cats_micro_f"),
}

SYSTEMS: dict[str, Callable[[str], Config]] = {
    "baseline": baseline_config,
    "elmo": elmo_config,
    "elmo-output": lambda component: elmo_config(component, placement="output"),
    "elmo-both": lambda component: elmo_config(component, placement="both"),
}


class Run(NamedTuple):
    """One training."""

    task: str
    system: str
    fraction: float
    seed: int

    @property
    def name(self) -> str:
        """Name of the file without its suffix."""
        return f"{self.task}-{self.system}-{self.fraction:g}-{self.seed}"


def sample(docs: Sequence[Doc], fraction: float, seed: int) -> list[Doc]:
    """RETURNS (list[Doc]): A share of the Docs, in their order; of one seed, a smaller share is part of a larger one."""
    order = random.Random(seed).sample(range(len(docs)), len(docs))
    return [docs[index] for index in sorted(order[: max(FEWEST, round(fraction * len(docs)))])]


@cache
def read_once(path: Path, lang: str) -> list[Doc]:
    """RETURNS (list[Doc]): What is in a file; not to be changed, for other runs get the same."""
    return read_docs(path, lang)


def with_pos_as_tag(doc: Doc) -> Doc:
    """RETURNS (Doc): A copy that a tagger learns UPOS from."""
    copied = doc.copy()
    for token in copied:
        token.tag_ = token.pos_
    return copied


def prepare(run: Run, data: Path, directory: Path) -> dict[str, str]:
    """Write the corpora of a run.

    RETURNS (dict[str, str]): Their paths.
    """
    task = TASKS[run.task]
    paths = {}
    for split in SPLITS:
        docs = read_once(find_split(data / task.directory, split), task.lang)
        if split == "train":
            docs = sample(docs, run.fraction, run.seed)
        if task.pos_as_tag:
            docs = [with_pos_as_tag(doc) for doc in docs]
        path = directory / f"{split}.spacy"
        DocBin(docs=docs).to_disk(path)
        paths[split] = str(path)
    return paths


def config_of(run: Run, paths: dict[str, str], options: argparse.Namespace) -> Config:
    """RETURNS (Config): Of the training."""
    task = TASKS[run.task]
    config = SYSTEMS[run.system](task.component)
    config["nlp"]["lang"] = task.lang
    config["paths"].update(train=paths["train"], dev=paths["dev"])
    config["system"].update(seed=run.seed, gpu_allocator="pytorch" if options.gpu_id >= 0 else None)
    for corpus in config["corpora"].values():
        corpus["gold_preproc"] = task.component != "textcat"
    limits = {"max_steps": options.max_steps, "patience": options.patience, "eval_frequency": options.eval_frequency}
    config["training"].update(limits)
    if "elmo" in config["components"]:
        elmo = config["components"]["elmo"]
        elmo["model"]["source"] = options.elmo
        elmo["cache_directory"] = str(options.output / "features")
    return config


def train_and_score(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """RETURNS (dict): The scores of a run, and what it took."""
    task = TASKS[run.task]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name, open(options.output / f"{run.name}.log", "w", encoding="utf-8") as log:
        directory = Path(name)
        paths = prepare(run, options.data, directory)
        nlp = init_nlp(config_of(run, paths, options), use_gpu=options.gpu_id)
        train(nlp, directory, use_gpu=options.gpu_id, stdout=log, stderr=log)
        seconds = time.perf_counter() - start
        nlp = spacy.load(directory / "model-best")
        config = nlp.config.interpolate()
        config["corpora"]["dev"]["path"] = paths["test"]
        (corpus,) = resolve_dot_names(config, ["corpora.dev"])
        examples = list(corpus(nlp))
        scores = nlp.evaluate(examples)
    return {
        **run._asdict(),
        "score": scores[task.score],
        "dev_score": nlp.meta["performance"][task.score],
        "scores": {key: value for key, value in scores.items() if isinstance(value, float)},
        "mixes": [mix._asdict() for mix in layer_mixes(nlp)],
        "training_seconds": round(seconds, 1),
    }


def summary(results: Sequence[dict[str, Any]]) -> str:
    """RETURNS (str): A table: mean and standard deviation over seeds, in percent, and gain over the baseline."""
    systems = [system for system in SYSTEMS if any(result["system"] == system for result in results)]
    lines = [f"| task | data | {' | '.join(systems)} |", "|---|---|" + "---|" * len(systems)]
    for task, fraction in sorted({(result["task"], result["fraction"]) for result in results}):
        cells, baseline = [], None
        for system in systems:
            key = (task, fraction, system)
            found = [100 * r["score"] for r in results if (r["task"], r["fraction"], r["system"]) == key]
            baseline = mean(found) if system == "baseline" and found else baseline
            cells.append(_cell(found, None if system == "baseline" else baseline))
        lines.append(f"| {task} ({TASKS[task].score}) | {100 * fraction:g} % | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(scores: Sequence[float], baseline: float | None) -> str:
    if not scores:
        return ""
    spread = f" ± {stdev(scores):.2f}" if len(scores) > 1 else ""
    gain = "" if baseline is None else f" ({mean(scores) - baseline:+.2f})"
    return f"{mean(scores):.2f}{spread}{gain}"


def write_summary(output: Path) -> None:
    """Sum up all runs that are there."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((output / "runs").glob("*.json"))]
    (output / "scores.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (output / "scores.md").write_text(summary(results), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Do all runs that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("data", type=Path, help="directory of the labelled sets")
    add("output", type=Path)
    add("--tasks", nargs="+", choices=TASKS, default=["ner-ewt", "ner-wnut", "xpos", "upos", "sst5"])
    add("--systems", nargs="+", choices=SYSTEMS, default=["baseline", "elmo"])
    add("--fractions", nargs="+", type=float, default=[0.01, 0.05, 0.2, 1.0], help="shares of the training data")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--elmo", help="directory of weights (default: the model that comes with spacy-elmo)")
    add("--max-steps", type=int, default=4000)
    add("--patience", type=int, default=1000, help="steps without a better score on the dev set, after which to stop")
    add("--eval-frequency", type=int, default=200)
    add("--gpu-id", type=int, default=-1)
    options = parser.parse_args(arguments)
    setup_gpu(options.gpu_id, silent=True)
    (options.output / "runs").mkdir(parents=True, exist_ok=True)
    runs = [
        Run(task, system, fraction, seed)
        for fraction in options.fractions
        for seed in options.seeds
        for task in options.tasks
        for system in options.systems
    ]
    for number, run in enumerate(runs, start=1):
        path = options.output / "runs" / f"{run.name}.json"
        if path.is_file():
            continue
        result = train_and_score(run, options)
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(path)
        print(
            f"{number}/{len(runs)} {run.name}: {100 * result['score']:.2f}, {result['training_seconds']} s", flush=True
        )
        write_summary(options.output)
    write_summary(options.output)
    print((options.output / "scores.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())
