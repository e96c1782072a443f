"""The n-gram baselines: against an obvious implementation, and as a command."""

import gzip
import importlib.util
import json
import math
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[1] / "project" / "scripts"


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up, and one script the other
    spec.loader.exec_module(module)
    return module


kneser_ney = load_script("kneser_ney")
baseline = load_script("ngram_baseline")
DIRECTIONS = [kneser_ney.FORWARD, kneser_ney.BACKWARD]
VOCABULARY = ["<S>", "</S>", "<UNK>", "a", "b", "c", "d", "never"]


def make_sentences(seed: int, n_sentences: int) -> list[list[str]]:
    """Make sentences of 1 to 8 words with skewed frequencies and a little structure; "x" and "y" are unknown."""
    generator = random.Random(seed)
    weights = {"a": 9, "b": 5, "c": 3, "d": 1, "x": 1, "y": 1}
    sentences = []
    for _ in range(n_sentences):
        words: list[str] = []
        for _ in range(generator.randint(1, 8)):
            follows = words and words[-1] == "a" and generator.random() < 0.5
            words.append("c" if follows else generator.choices(list(weights), list(weights.values()))[0])
        sentences.append(words)
    return sentences


TRAIN = make_sentences(seed=1, n_sentences=60)
HELD_OUT = [*make_sentences(seed=2, n_sentences=20), ["never"], ["d", "never", "a", "b", "b", "b"]]


class PlainKneserNey:
    """The same formulas with tuples, dicts and recursion, for one reading order."""

    def __init__(self, sentences: Sequence[Sequence[str]], order: int, backward: bool):
        self.order = order
        self.given, self.predicted = ("</S>", "<S>") if backward else ("<S>", "</S>")
        self.step = -1 if backward else 1
        self.words = [word for word in VOCABULARY if word != self.given]
        occurrences: dict[int, Counter[tuple[str, ...]]] = {k: Counter() for k in range(1, order + 1)}
        for sentence in sentences:
            tokens = self.read(sentence)
            for k in range(1, order + 1):
                occurrences[k].update(tuple(tokens[i : i + k]) for i in range(len(tokens) - k + 1))
        del occurrences[1][(self.given,)]
        self.followers: dict[tuple[str, ...], dict[str, int]] = defaultdict(dict)
        self.discounts: dict[int, list[float]] = {}
        for k in range(1, order + 1):
            counts = dict(occurrences[k])
            if k < order:
                before: dict[tuple[str, ...], set[str]] = defaultdict(set)
                for ngram in occurrences[k + 1]:
                    before[ngram[1:]].add(ngram[0])
                counts = {ngram: n if ngram[0] == self.given else len(before[ngram]) for ngram, n in counts.items()}
            self.discounts[k] = self.estimate(list(counts.values()))
            for ngram, n in counts.items():
                self.followers[ngram[:-1]][ngram[-1]] = n

    def read(self, sentence: Sequence[str]) -> list[str]:
        known = [word if word in VOCABULARY[3:] else "<UNK>" for word in sentence]
        return [self.given, *known[:: self.step], self.predicted]

    @staticmethod
    def estimate(counts: list[int]) -> list[float]:
        n = [counts.count(value) for value in range(5)]
        if n[1] == 0 or n[2] == 0 or n[3] == 0:
            return [0, 0.5, 1, 1.5]
        y = n[1] / (n[1] + 2 * n[2])
        amounts = [i - (i + 1) * y * n[i + 1] / n[i] for i in (1, 2, 3)]
        if any(amount <= 0 or amount > i for i, amount in enumerate(amounts, start=1)):
            return [0, 0.5, 1, 1.5]
        return [0, *amounts]

    def probability(self, context: tuple[str, ...], word: str) -> float:
        lower = self.probability(context[1:], word) if context else 1 / len(self.words)
        followers = self.followers.get(context)
        if not followers:
            return lower
        discounts = self.discounts[len(context) + 1]
        n = followers.get(word, 0)
        left_over = sum(discounts[min(count, 3)] for count in followers.values())
        return (max(n - discounts[min(n, 3)], 0) + left_over * lower) / sum(followers.values())

    def perplexity(self, sentences: Sequence[Sequence[str]], with_boundary: bool) -> float:
        losses = []
        for sentence in sentences:
            tokens = self.read(sentence)
            for i in range(1, len(tokens) if with_boundary else len(tokens) - 1):
                context = tuple(tokens[max(0, i - self.order + 1) : i])
                losses.append(-math.log(self.probability(context, tokens[i])))
        return math.exp(sum(losses) / len(losses))


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    text = "".join(f"{line}\n" for line in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode("utf-8")))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def test_test_corpus_has_estimated_and_fallback_discounts():
    model = kneser_ney.fit(baseline.encode(TRAIN, VOCABULARY), kneser_ney.FORWARD, 5, len(VOCABULARY))
    assert {level.discounts.estimated for level in model.levels} | {model.unigram_discounts.estimated} == {True, False}


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("direction", DIRECTIONS, ids=["forward", "backward"])
def test_perplexity_equals_plain_implementation(direction, order):
    model = kneser_ney.fit(baseline.encode(TRAIN, VOCABULARY), direction, order, len(VOCABULARY))
    scores = kneser_ney.score(model, baseline.encode(HELD_OUT, VOCABULARY))
    plain = PlainKneserNey(TRAIN, order, backward=direction is kneser_ney.BACKWARD)
    assert scores["perplexity"] == pytest.approx(plain.perplexity(HELD_OUT, with_boundary=True), rel=1e-9)
    without_boundary = plain.perplexity(HELD_OUT, with_boundary=False)
    assert scores["perplexity_without_boundary"] == pytest.approx(without_boundary, rel=1e-9)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("direction", DIRECTIONS, ids=["forward", "backward"])
def test_probabilities_after_every_context_sum_to_one(direction, order):
    model = kneser_ney.fit(baseline.encode(TRAIN[:25], VOCABULARY), direction, order, len(VOCABULARY))
    words = range(2, len(VOCABULARY))
    contexts = [context for length in range(order) for context in product(words, repeat=length)]
    total = np.zeros(len(contexts))
    for last in [direction.predicted, *words]:
        stream = np.array([token for context in contexts for token in (direction.given, *context, last)])
        ends = np.cumsum([len(context) + 2 for context in contexts]) - 1
        total += model.probabilities(stream)[ends]
    np.testing.assert_allclose(total, 1.0, rtol=1e-12)
    assert model.unigrams[direction.given] == 0.0


@pytest.mark.parametrize("direction", DIRECTIONS, ids=["forward", "backward"])
def test_perplexity_of_deterministic_text_is_small(direction):
    stream = baseline.encode([["a", "b", "c", "d"]] * 200, VOCABULARY)
    model = kneser_ney.fit(stream, direction, 3, len(VOCABULARY))
    assert 1.0 < kneser_ney.score(model, stream)["perplexity"] < 1.02


def test_unigram_perplexity_is_the_same_in_both_directions():
    train, held_out = baseline.encode(TRAIN, VOCABULARY), baseline.encode(HELD_OUT, VOCABULARY)
    forward, backward = (
        kneser_ney.score(kneser_ney.fit(train, way, 1, len(VOCABULARY)), held_out) for way in DIRECTIONS
    )
    assert forward == pytest.approx(backward, rel=1e-12)


def test_discounts_follow_chen_and_goodman():
    counts = np.repeat([1, 2, 3, 4, 9], [10, 5, 3, 2, 1])
    # Y = 10 / (10 + 2 * 5) = 1/2
    discounts = kneser_ney.estimate_discounts(counts)
    assert discounts.amounts == pytest.approx([0, 1 - 2 * 0.5 * 5 / 10, 2 - 3 * 0.5 * 3 / 5, 3 - 4 * 0.5 * 2 / 3])
    assert discounts.counts_of_counts == [10, 5, 3, 2]
    assert discounts.estimated


@pytest.mark.parametrize(
    "counts",
    [[2, 2, 3, 4], [1, 2, 4], [1, 1, 1, 1, 2, 3]],
    ids=["nothing counted once", "nothing counted 3 times", "the discount of 2 would be 0"],
)
def test_discounts_fall_back_where_counts_are_too_few(counts):
    discounts = kneser_ney.estimate_discounts(np.array(counts))
    assert discounts.amounts.tolist() == [0, 0.5, 1, 1.5]
    assert not discounts.estimated


def test_every_word_and_one_boundary_a_sentence_are_scored():
    stream = baseline.encode([["a", "b"], ["c"]], VOCABULARY)
    scores = kneser_ney.score(kneser_ney.fit(stream, kneser_ney.BACKWARD, 2, len(VOCABULARY)), stream)
    assert (scores["tokens"], scores["tokens_without_boundary"]) == (5, 3)


def test_text_spelled_like_a_boundary_is_unknown():
    assert baseline.encode([["a", "<S>", "</S>", "z"]], VOCABULARY).tolist() == [0, 3, 2, 2, 2, 1]


def test_vocabulary_is_sorted_by_frequency_then_spelling():
    vocabulary = baseline.build_vocabulary([["c", "b", "<S>"], ["b", "d", "a"]], 6)
    assert vocabulary == ["<S>", "</S>", "<UNK>", "b", "a", "c"]


def test_command_reports_each_held_out_file(tmp_path, capsys):
    train = tmp_path / "train"
    train.mkdir()
    write_lines(train / "one.txt", [" ".join(words) for words in TRAIN[:30]])
    write_lines(train / "two.txt.gz", [" ".join(words) for words in TRAIN[30:]])
    valid = write_lines(tmp_path / "valid.txt.gz", [" ".join(words) for words in HELD_OUT])
    test = write_lines(tmp_path / "test.txt", ["a b", "", "c"])
    vocabulary = write_lines(tmp_path / "vocabulary.txt.gz", VOCABULARY)
    output = tmp_path / "reports" / "report.json"
    arguments = ["--train", str(train), "--eval", str(valid), str(test), "--vocabulary", str(vocabulary)]
    baseline.main([*arguments, "--order", "3", "--output", str(output)])
    report = json.loads(output.read_text(encoding="utf-8"))
    forward, backward = (
        PlainKneserNey(TRAIN, 3, backward).perplexity(HELD_OUT, with_boundary=True) for backward in (False, True)
    )
    scores = report["results"][str(valid)]["3-gram"]
    assert scores["backward"]["perplexity"] == pytest.approx(backward, rel=1e-9)
    assert scores["average"]["perplexity"] == pytest.approx(math.sqrt(forward * backward), rel=1e-9)
    assert report["results"][str(test)]["unigram"]["forward"]["tokens"] == 5
    assert f"{backward:.2f}" in capsys.readouterr().out


def test_command_reads_files_of_overlapping_globs_once_and_builds_the_vocabulary(tmp_path):
    write_lines(tmp_path / "train-0.txt", ["a b a"])
    write_lines(tmp_path / "train-1.txt", ["a c"])
    held_out = write_lines(tmp_path / "held_out.txt", ["a"])
    output = tmp_path / "report.json"
    train = [str(tmp_path / name) for name in ("train-*.txt", "train-0.txt")]
    arguments = ["--train", *train, "--eval", str(held_out), "--vocabulary-size", "5"]
    baseline.main([*arguments, "--output", str(output)])
    report = json.loads(output.read_text(encoding="utf-8"))
    assert report["settings"]["vocabulary_size"] == 5
    assert report["texts"]["train"] == {"sentences": 2, "words": 5, "unknown_share": pytest.approx(1 / 5)}


def test_command_refuses_a_vocabulary_of_special_words_alone(tmp_path):
    text = write_lines(tmp_path / "train.txt", ["a b"])
    held_out = write_lines(tmp_path / "held_out.txt", ["a"])
    with pytest.raises(SystemExit, match="--vocabulary-size must be over 3, but is 3"):
        baseline.main(["--train", str(text), "--eval", str(held_out), "--vocabulary-size", "3"])


@pytest.mark.parametrize(
    ("train", "held_out", "vocabulary", "message"),
    [
        ("missing.txt", "held_out.txt", "vocabulary.txt", "No text at '.*missing.txt'"),
        ("train.txt", "missing.txt", "vocabulary.txt", "No text at '.*missing.txt'"),
        ("train.txt", "held_out.txt", "missing.txt", "Vocabulary file '.*missing.txt' does not exist"),
        ("empty.txt", "held_out.txt", "vocabulary.txt", "No words in .*empty.txt"),
        ("train.txt", "empty.txt", "vocabulary.txt", "No words in .*empty.txt"),
        ("train.txt", "held_out.txt", "train.txt", "must begin with the lines"),
        ("train.txt", "held_out.txt", "twice.txt", "Line 5 of vocabulary .* repeats an earlier line: 'a'"),
        ("*.txt", "held_out.txt", "vocabulary.txt", "must not be trained on.*held_out.txt"),
    ],
)
def test_command_says_what_is_wrong_with_a_file(tmp_path, train, held_out, vocabulary, message):
    write_lines(tmp_path / "train.txt", ["a b"])
    write_lines(tmp_path / "held_out.txt", ["a b"])
    write_lines(tmp_path / "empty.txt", ["", " "])
    write_lines(tmp_path / "vocabulary.txt", VOCABULARY)
    write_lines(tmp_path / "twice.txt", [*VOCABULARY[:4], "a"])
    paths = {"--train": train, "--eval": held_out, "--vocabulary": vocabulary}
    arguments = [part for option, name in paths.items() for part in (option, str(tmp_path / name))]
    with pytest.raises(SystemExit, match=message):
        baseline.main(arguments)
