"""Training words per second of spacy-elmo beside a step as bilm-tf does it, in plain torch. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from sentences import read_sentences
from training_yardstick import Yardstick

from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.softmax import build_head
from spacy_elmo.pretraining.batches import group_by_words
from spacy_elmo.pretraining.dropout import SeededDropout
from spacy_elmo.pretraining.objective import log_probabilities, prepare_sentences
from spacy_elmo.pretraining.vocabulary import Vocabulary

DEFAULT_TEXT = Path(__file__).resolve().parents[2] / "shared" / "data" / "corpus_en" / "train-00.txt.gz"
CONFIG = BiLMConfig(filters=((1, 32), (2, 64), (3, 128), (4, 160)), n_highway=1, projection=128, cells=512, n_layers=2)
SAMPLES = 8192
HEADS: dict[str, dict[str, Any]] = {
    "spacy-elmo adaptive": {"kind": "adaptive", "cutoffs": [1000, 4000, 12000], "shrink": 2.0},
    "spacy-elmo sampled": {"kind": "sampled", "n_samples": SAMPLES},
}
YARDSTICK = "bilm-tf's step"
UNROLL = 20
# Steps until memory is found and kernels are made; how often the steps of a profile are timed without it.
WARM_UP, PLAIN_RUNS = 10, 3
# What a profile counts as a product of matrices.
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "linear", "conv", "mkldnn_convolution", "_convolution")

Sentences = list[list[str]]
Step = Callable[[Sentences], float]


class OurStep:
    """A step of `spacy_elmo.pretraining`: dropout, joint loss, bound of the gradients, AdamW.

    vocabulary (Vocabulary): The words predicted.
    head (dict): Settings of the output head, without sizes.
    dtype (torch.dtype | None): Lower precision of matrix products.
    compiled (bool): Whether numba compiles the cells of the LSTMs.
    """

    def __init__(
        self, vocabulary: Vocabulary, head: dict[str, Any], dropout: float, dtype: torch.dtype | None, compiled: bool
    ) -> None:
        self.vocabulary, self.rate, self.dtype = vocabulary, dropout, dtype
        self.bilm = BiLM(CONFIG)
        self.bilm.set_recurrence("compiled" if compiled else "steps")
        self.head = build_head({**head, "projection": CONFIG.projection, "n_words": len(vocabulary)})
        self.parameters = [*self.bilm.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
        self.generator, self.samples = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)

    def __call__(self, sentences: Sentences) -> float:
        batch = prepare_sentences(sentences, self.vocabulary)
        score = partial(self.head.training_log_probabilities, generator=self.samples)
        dropout = SeededDropout(self.rate, self.generator) if self.rate else None
        with torch.autocast("cpu", self.dtype, enabled=self.dtype is not None):
            scores, _ = log_probabilities(self.bilm, score, batch, dropout=dropout)
            loss = -scores.mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in self.parameters])
        self.optimizer.grad_scale = norm.clamp(min=1.0)
        self.optimizer.found_inf = (~norm.isfinite()).float()
        self.optimizer.step()
        return loss.item()


def main() -> None:
    options = _parse_arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    sentences = [sentence[:200] for sentence in read_sentences(options.text, options.sentences)]
    vocabulary = Vocabulary.count(sentences, options.vocabulary)
    random.Random(0).shuffle(sentences)
    steps = _contestants(vocabulary, options)
    batches = _batches(sentences, options)
    print(
        f"{len(vocabulary):,} words of vocabulary, batches of {options.batch_words} words, dropout {options.dropout}, "
        f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}"
    )
    if options.profile:
        _profile(steps, batches, options.profile)
        return
    speeds, losses = _measure(steps, batches, options.rounds)
    _print_table(speeds, losses)
    if options.json:
        options.json.write_text(json.dumps({"words_per_second": speeds}, indent=2) + "\n", encoding="utf8")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=DEFAULT_TEXT, help="one sentence a line, words apart by spaces")
    parser.add_argument("--sentences", type=int, default=60_000, help="sentences to read")
    parser.add_argument("--threads", type=int, default=2, help="threads of all contestants")
    parser.add_argument("--rounds", type=int, default=5, help="rounds; in each every contestant does one step")
    parser.add_argument("--batch-words", type=int, default=2560, help="words of a step (bilm-tf: 128 streams of 20)")
    parser.add_argument("--vocabulary", type=int, default=30_000, help="words predicted, at most")
    parser.add_argument("--dropout", type=float, default=0.1, help="of all contestants")
    parser.add_argument("--bfloat16", action="store_true", help="spacy-elmo also with products in bfloat16")
    parser.add_argument("--compiled", action="store_true", help="spacy-elmo also with cells that numba compiles")
    parser.add_argument(
        "--profile", type=int, metavar="STEPS", help="no race: share of matrix products in the time of some steps"
    )
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    return parser.parse_args()


def _contestants(vocabulary: Vocabulary, options: argparse.Namespace) -> dict[str, Step]:
    precisions = {"": None, " bf16": torch.bfloat16} if options.bfloat16 else {"": None}
    recurrences = {"": False, " compiled": True} if options.compiled else {"": False}
    steps: dict[str, Step] = {}
    for (low, dtype), (kind, compiled), (name, head) in product(precisions.items(), recurrences.items(), HEADS.items()):
        steps[name + low + kind] = OurStep(vocabulary, head, options.dropout, dtype, compiled)
    if not options.profile:
        steps[YARDSTICK] = Yardstick(CONFIG, vocabulary, SAMPLES, UNROLL, options.dropout)
    return steps


def _batches(sentences: Sentences, options: argparse.Namespace) -> list[Sentences]:
    """Of like length, in any order, as in training."""
    in_buffer = next(group_by_words(sentences, 400_000))
    batches = list(group_by_words(sorted(in_buffer, key=len), options.batch_words))
    random.Random(1).shuffle(batches)
    return batches


def _measure(
    steps: dict[str, Step], batches: list[Sentences], rounds: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Words per second of each contestant, one number a round; all take the same batch, by turns."""
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    losses = {}
    names = list(steps)
    for round_number in range(rounds + 1):
        sentences = batches[round_number % len(batches)]
        words = sum(map(len, sentences))
        # Nobody always has the turn after the same neighbour.
        first = round_number % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            losses[name] = steps[name](sentences)
            if round_number:  # the first round warms up
                speeds[name].append(words / (time.perf_counter() - start))
    return speeds, losses


def _print_table(speeds: dict[str, list[float]], losses: dict[str, float]) -> None:
    print(f"\n{'':<33} words/s    min    max   ratio (min-max)   last loss")
    for name, found in speeds.items():
        ratios = [ours / theirs for ours, theirs in zip(found, speeds[YARDSTICK], strict=True)]
        spread = f"{statistics.median(ratios):5.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        print(
            f"{name:<33} {statistics.median(found):7.0f} {min(found):6.0f} {max(found):6.0f}   {spread:<17} "
            f"{losses[name]:8.2f}"
        )


def _profile(steps: dict[str, Step], batches: list[Sentences], number: int) -> None:
    """The profiler slows small operations more than products: the time of products is its own, that of the steps is measured
    before."""
    timed = batches[:number]
    for name, step in steps.items():
        _run(step, [*batches[number : number + WARM_UP], *timed])
        seconds = statistics.median(_run(step, timed) for _ in range(PLAIN_RUNS))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            _run(step, timed)
        events = profile.key_averages()
        products = sum(event.self_cpu_time_total for event in events if _is_product(event.key)) / 1e6
        print(f"\n{name}: {products / seconds:.0%} of {seconds:.1f} s in matrix products; as the profiler sees it:")
        _print_largest(events)


def _run(step: Step, batches: list[Sentences]) -> float:
    """Seconds of some steps."""
    start = time.perf_counter()
    for sentences in batches:
        step(sentences)
    return time.perf_counter() - start


def _is_product(name: str) -> bool:
    return name.removeprefix("aten::").rstrip("_") in PRODUCTS


def _print_largest(events: Sequence[Any]) -> None:
    total = sum(event.self_cpu_time_total for event in events)
    largest = sorted(events, key=lambda event: -event.self_cpu_time_total)[:16]
    for event in largest:
        print(f"  {event.self_cpu_time_total / total:6.1%}  {event.count:7} x  {event.key}")


if __name__ == "__main__":
    main()
