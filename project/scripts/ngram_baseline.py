"""Held-out perplexity of n-gram language models, as baselines for a biLM on the same closed vocabulary.

Two models are counted on the training text for each direction: a unigram, and an interpolated n-gram with modified
Kneser-Ney discounts (Chen & Goodman 1999, section 4.1.6). Forward predicts each word from the words on its left, then
</S> after the last word; backward predicts each word from the words on its right, then <S> after the first word. So a
direction is scored on exactly the tokens a biLM is scored on: every word of a sentence and one boundary token.

- Words outside the vocabulary become <UNK>, which is a word like any other. So does text that is spelled <S> or </S>.
- Probabilities sum to 1 over the vocabulary without the token that is never predicted (forward <S>, backward </S>).
- The start of a sentence stands in the context once: padding with more of it would add nothing that is not known.
  Lower orders use continuation counts (of how many tokens does one stand before this n-gram?), except for n-grams that
  begin at the start of the sentence: nothing ever stands before those, so their plain counts are used.
- Nothing is pruned. The unigram level is interpolated with the uniform distribution.
- Where counts are too few to estimate the three discounts of an order, 0.5, 1 and 1.5 are used, and this is reported.

    python ngram_baseline.py --train corpus/train-*.txt.gz --eval corpus/valid.txt.gz corpus/test.txt.gz \\
        --vocabulary vocabulary.txt.gz --output ngram_baseline.json
"""

import argparse
import gzip
import json
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.integer[Any]]
FloatArray = NDArray[np.float64]

SPECIAL_WORDS = ("<S>", "</S>", "<UNK>")
SENTENCE_START, SENTENCE_END, UNKNOWN = range(3)
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
TEXT_SUFFIXES = (".txt", ".txt.gz")


class Direction(NamedTuple):
    """The order in which a sentence is read: which boundary is given, and which one is predicted at the end."""

    name: str
    given: int
    predicted: int


FORWARD = Direction("forward", SENTENCE_START, SENTENCE_END)
BACKWARD = Direction("backward", SENTENCE_END, SENTENCE_START)


def expand_paths(patterns: Iterable[str]) -> list[Path]:
    """Find the text files that files, globs and directories stand for.

    patterns (Iterable[str]): Files, glob patterns, or directories that hold .txt or .txt.gz files.
    RETURNS (list[Path]): The files in the order given, each once; those of one pattern sorted by name.
    RAISES (FileNotFoundError): If a pattern matches no text file.
    """
    paths: list[Path] = []
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            found = [entry for entry in sorted(path.iterdir()) if entry.name.endswith(TEXT_SUFFIXES)]
        else:
            found = [path] if path.is_file() else [Path(name) for name in sorted(glob(pattern))]
        if not found:
            raise FileNotFoundError(f"No text at '{pattern}': give a file, a glob, or a directory of .txt or .txt.gz.")
        paths.extend(found)
    return list(dict.fromkeys(paths))


def read_lines(path: Path) -> Iterator[str]:
    """Read a text file or a gzipped one, line by line; only line feeds end a line."""
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
            yield from file
    else:
        with path.open(encoding="utf-8", newline="\n") as file:
            yield from file


def read_sentences(path: Path) -> Iterator[list[str]]:
    """Read tokenised sentences, one a line; lines without a word are left out."""
    for line in read_lines(path):
        words = line.split()
        if words:
            yield words


def read_vocabulary(path: Path) -> list[str]:
    """Read a vocabulary file: one word a line, the special words first.

    path (Path): Text file, gzipped if its name ends in .gz.
    RETURNS (list[str]): The words, special ones included.
    RAISES (ValueError): If the special words do not come first, or a word is empty or stands there twice.
    """
    if not path.is_file():
        raise FileNotFoundError(f"Vocabulary file '{path}' does not exist.")
    words = [line.rstrip("\r\n") for line in read_lines(path)]
    if tuple(words[:3]) != SPECIAL_WORDS:
        raise ValueError(f"Vocabulary '{path}' must begin with the lines {SPECIAL_WORDS}, not {words[:3]}.")
    seen: set[str] = set()
    for number, word in enumerate(words, start=1):
        if not word.strip() or word in seen:
            raise ValueError(f"Line {number} of vocabulary '{path}' is empty or repeats an earlier line: {word!r}.")
        seen.add(word)
    return words


def build_vocabulary(sentences: Iterable[Sequence[str]], size: int) -> list[str]:
    """Take the most frequent words of a text.

    sentences (Iterable[Sequence[str]]): The text.
    size (int): How many words to keep, special words included.
    RETURNS (list[str]): Special words, then words by falling frequency, and by spelling where it is equal.
    """
    frequencies: Counter[str] = Counter()
    for words in sentences:
        frequencies.update(words)
    for word in SPECIAL_WORDS:
        frequencies.pop(word, None)
    ranked = sorted(frequencies, key=lambda word: (-frequencies[word], word))
    return [*SPECIAL_WORDS, *ranked[: size - len(SPECIAL_WORDS)]]


def encode(sentences: Iterable[Sequence[str]], vocabulary: Sequence[str]) -> IntArray:
    """Turn sentences into one row of word ids.

    sentences (Iterable[Sequence[str]]): The sentences, each a sequence of words.
    vocabulary (Sequence[str]): Words by id, beginning with the special words.
    RETURNS (int32 (tokens,)): <S> w1 … wn </S> of all sentences, one after another.
    """
    n_special = len(SPECIAL_WORDS)
    word_ids = {word: number for number, word in enumerate(vocabulary[n_special:], start=n_special)}
    stream = array("i")
    for words in sentences:
        stream.append(SENTENCE_START)
        stream.extend(map(word_ids.get, words, repeat(UNKNOWN)))
        stream.append(SENTENCE_END)
    return np.array(stream, dtype=np.int32)


def orient(stream: IntArray, direction: Direction) -> IntArray:
    """Put a row of <S> … </S> sentences into reading order; reversed as a whole, every sentence is reversed."""
    return stream if direction.given == SENTENCE_START else np.ascontiguousarray(stream[::-1])


def positions_in_sentences(stream: IntArray, given: int) -> IntArray:
    """Number the tokens of each sentence, in reading order, from 0 at the boundary that is given."""
    positions = np.arange(len(stream), dtype=np.int32)
    starts = np.where(stream == given, positions, np.int32(0))
    positions -= np.maximum.accumulate(starts)
    return positions


class NgramCounts(NamedTuple):
    """All different n-grams of one order; an n-gram's id is its row.

    keys (int64 (ngrams,)): id of the context (the first n - 1 tokens) * vocabulary size + last word, rising.
    counts (int32 (ngrams,)): Occurrences.
    ids (int32 (tokens,)): The n-gram that ends at each token, -1 where the sentence has fewer than n tokens so far.
    examples (int64 (ngrams,)): A token at which each n-gram ends.
    """

    keys: IntArray
    counts: IntArray
    ids: IntArray
    examples: IntArray


def count_ngrams(
    stream: IntArray, positions: IntArray, context_ids: IntArray, order: int, n_vocabulary: int
) -> NgramCounts:
    """Count the n-grams of one order, given the ids of those one order below.

    stream (int32 (tokens,)): Word ids in reading order.
    positions (int32 (tokens,)): Place of each token in its sentence, 0 for the boundary that is given.
    context_ids (int32 (tokens,)): The (order - 1)-gram that ends at each token.
    order (int): Length of the n-grams, at least 2.
    n_vocabulary (int): Size of the vocabulary.
    RETURNS (NgramCounts): The n-grams, their counts and their places.
    """
    ends = np.flatnonzero(positions >= order - 1)
    keys = context_ids[ends - 1].astype(np.int64)
    keys *= n_vocabulary
    keys += stream[ends]
    ranking = np.argsort(keys)
    keys = keys[ranking]
    ends = ends[ranking]
    del ranking
    is_first = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    first = np.flatnonzero(is_first)
    ids = np.full(len(stream), -1, dtype=np.int32)
    ids[ends] = np.cumsum(is_first, dtype=np.int32) - np.int32(1)
    counts = np.diff(first, append=len(keys)).astype(np.int32)
    return NgramCounts(keys[first], counts, ids, ends[first])


@dataclass(frozen=True)
class Discounts:
    """What is taken off the counts of one order.

    amounts (float64 (4,)): Discount of n-grams counted 0, 1, 2, 3 times or more.
    counts_of_counts (list[int]): How many n-grams were counted 1, 2, 3, 4 times.
    estimated (bool): Whether the amounts were estimated; if not, they are the fallback.
    """

    amounts: FloatArray
    counts_of_counts: list[int]
    estimated: bool

    def of(self, counts: IntArray) -> FloatArray:
        """Give the discount of each count."""
        return self.amounts[np.minimum(counts, 3)]


def estimate_discounts(counts: IntArray) -> Discounts:
    """Estimate the three discounts of modified Kneser-Ney smoothing.

    counts (int (ngrams,)): Counts of one order (continuation counts below the highest).
    RETURNS (Discounts): The estimate, or the fallback if a count of counts it divides by is 0 or the estimate is not
        within 0 < D(i) <= i.
    """
    n1, n2, n3, n4 = (int(np.count_nonzero(counts == value)) for value in range(1, 5))
    amounts = FALLBACK_DISCOUNTS
    estimated = False
    if n1 and n2 and n3:
        share = n1 / (n1 + 2 * n2)
        candidate = (1 - 2 * share * n2 / n1, 2 - 3 * share * n3 / n2, 3 - 4 * share * n4 / n3)
        estimated = all(0 < amount <= limit for limit, amount in enumerate(candidate, start=1))
        amounts = candidate if estimated else amounts
    return Discounts(np.array([0.0, *amounts]), [n1, n2, n3, n4], estimated)


@dataclass(frozen=True)
class NgramLevel:
    """The smoothed n-grams of one order (2 or more).

    keys (int64 (ngrams,)): See `NgramCounts`.
    counts (int32 (ngrams,)): Counts at the highest order; below, continuation counts where there are any.
    discounts (Discounts): The discounts of this order.
    context_totals (float64 (contexts,)): Sum of the counts after each context.
    context_masses (float64 (contexts,)): Sum of the discounts after each context, which goes to the lower order.
    """

    keys: IntArray
    counts: IntArray
    discounts: Discounts
    context_totals: FloatArray
    context_masses: FloatArray

    @classmethod
    def from_counts(cls, keys: IntArray, counts: IntArray, n_contexts: int, n_vocabulary: int) -> "NgramLevel":
        """Estimate the discounts and sum over contexts; `n_contexts` is the number of n-grams one order below."""
        discounts = estimate_discounts(counts)
        contexts = keys // n_vocabulary
        totals, masses = (
            np.bincount(contexts, weights=weights, minlength=n_contexts).astype(np.float64, copy=False)
            for weights in (counts, discounts.of(counts))
        )
        return cls(keys, counts, discounts, totals, masses)

    def find(self, keys: IntArray) -> IntArray:
        """Find the rows of n-grams by key; -1 for those that were never seen."""
        rows = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[rows] == keys, rows, -1)

    def interpolate(self, contexts: IntArray, rows: IntArray, lower: FloatArray) -> FloatArray:
        """Interpolate discounted relative frequencies with the probabilities of the lower order.

        contexts (int64 (queries,)): Ids of the contexts, all seen.
        rows (int64 (queries,)): Rows of the n-grams, -1 if not seen.
        lower (float64 (queries,)): Probabilities in the lower order.
        RETURNS (float64 (queries,)): Probabilities in this order.
        """
        counts = np.where(rows >= 0, self.counts[rows], 0)
        kept = counts - self.discounts.of(counts)
        return (np.maximum(kept, 0.0) + self.context_masses[contexts] * lower) / self.context_totals[contexts]


@dataclass(frozen=True)
class KneserNeyModel:
    """An interpolated modified Kneser-Ney language model of one direction.

    direction (Direction): The reading order.
    unigrams (float64 (vocabulary,)): Probability of each word without a context; 0 for the boundary that is given.
    unigram_discounts (Discounts): The discounts behind `unigrams`.
    levels (list[NgramLevel]): Orders 2, 3, ….
    """

    direction: Direction
    unigrams: FloatArray
    unigram_discounts: Discounts
    levels: list[NgramLevel]

    def probabilities(self, stream: IntArray) -> FloatArray:
        """Give the probability of each token of a row of sentences.

        stream (int (tokens,)): Word ids in reading order, each sentence beginning with the boundary that is given.
        RETURNS (float64 (tokens,)): Probability of each token after those before it in its sentence; nan for the
            boundary that is given.
        """
        positions = positions_in_sentences(stream, self.direction.given)
        probabilities = self.unigrams[stream]
        ids = stream.astype(np.int64)
        for order, level in enumerate(self.levels, start=2):
            ends = np.flatnonzero(positions >= order - 1)
            ends = ends[ids[ends - 1] >= 0]
            contexts = ids[ends - 1]
            # A context seen only as the end of a sentence has no continuation and leaves the lower order as it is.
            known = level.context_totals[contexts] > 0
            ends, contexts = ends[known], contexts[known]
            rows = level.find(contexts * len(self.unigrams) + stream[ends])
            probabilities[ends] = level.interpolate(contexts, rows, probabilities[ends])
            ids = np.full(len(stream), -1, dtype=np.int64)
            ids[ends] = rows
        probabilities[positions == 0] = np.nan
        return probabilities


def smooth_unigrams(counts: IntArray, given: int) -> tuple[FloatArray, Discounts]:
    """Interpolate unigram counts (vocabulary,) with a uniform distribution over all but the given boundary."""
    discounts = estimate_discounts(counts)
    amounts = discounts.of(counts)
    uniform = np.full(len(counts), 1 / (len(counts) - 1))
    uniform[given] = 0.0
    return (np.maximum(counts - amounts, 0.0) + amounts.sum() * uniform) / counts.sum(), discounts


def fit(stream: IntArray, direction: Direction, order: int, n_vocabulary: int) -> KneserNeyModel:
    """Count n-grams of all orders and smooth them.

    stream (int32 (tokens,)): Training text as `encode` gives it (left to right, whatever the direction).
    direction (Direction): The reading order of the model.
    order (int): Length of the longest n-grams, at least 1.
    n_vocabulary (int): Size of the vocabulary, special words included.
    RETURNS (KneserNeyModel): The model.
    RAISES (ValueError): If the text is empty or the order is below 1.
    """
    if order < 1:
        raise ValueError(f"The order of an n-gram model must be at least 1, but is {order}.")
    if not len(stream):
        raise ValueError("The training text is empty: nothing can be counted.")
    stream = orient(stream, direction)
    positions = positions_in_sentences(stream, direction.given)
    counts: IntArray = np.bincount(stream[positions > 0], minlength=n_vocabulary)
    ids: IntArray = stream
    keys: IntArray = np.arange(n_vocabulary)
    n_contexts = 1
    finished: list[tuple[IntArray, IntArray, int]] = []
    for longer in range(2, order + 1):
        ngrams = count_ngrams(stream, positions, ids, longer, n_vocabulary)
        # Each longer n-gram is one more token before its suffix. Suffixes without one begin at the sentence's start.
        preceding = np.bincount(ids[ngrams.examples], minlength=len(counts))
        finished.append((keys, np.where(preceding > 0, preceding, counts).astype(np.int32), n_contexts))
        n_contexts = len(counts)
        keys, counts, ids = ngrams.keys, ngrams.counts, ngrams.ids
        del ngrams, preceding
    finished.append((keys, counts, n_contexts))
    unigrams, unigram_discounts = smooth_unigrams(finished[0][1], direction.given)
    levels = [NgramLevel.from_counts(*counted, n_vocabulary) for counted in finished[1:]]
    return KneserNeyModel(direction, unigrams, unigram_discounts, levels)


def score(model: KneserNeyModel, stream: IntArray) -> dict[str, float]:
    """Score held-out text.

    model (KneserNeyModel): The model of one direction.
    stream (int32 (tokens,)): The text as `encode` gives it.
    RETURNS (dict[str, float]): Perplexity over every word and the predicted boundary, and over the words alone.
    """
    stream = orient(stream, model.direction)
    losses = -np.log(model.probabilities(stream))
    scored = stream != model.direction.given
    words = scored & (stream != model.direction.predicted)
    return {
        "perplexity": float(np.exp(losses[scored].mean())),
        "perplexity_without_boundary": float(np.exp(losses[words].mean())),
        "tokens": int(scored.sum()),
        "tokens_without_boundary": int(words.sum()),
    }


def describe(model: KneserNeyModel) -> list[dict[str, Any]]:
    """List the discounts and the number of n-grams of each order for the report."""
    discounts = [model.unigram_discounts, *(level.discounts for level in model.levels)]
    sizes = [int(np.count_nonzero(model.unigrams)), *(len(level.keys) for level in model.levels)]
    return [
        {
            "order": order,
            "ngrams": size,
            "discounts": each.amounts[1:].tolist(),
            "counts_of_counts": each.counts_of_counts,
            "discounts_estimated": each.estimated,
        }
        for order, (each, size) in enumerate(zip(discounts, sizes, strict=True), start=1)
    ]


def average(forward: dict[str, float], backward: dict[str, float]) -> dict[str, float]:
    """Give the perplexities of the mean loss of both directions, as biLMs report it (both have as many tokens)."""
    names = ("perplexity", "perplexity_without_boundary")
    return {name: float(np.sqrt(forward[name] * backward[name])) for name in names}


def run(train: IntArray, held_out: dict[str, IntArray], order: int, n_vocabulary: int) -> dict[str, Any]:
    """Fit and score the unigram and the n-gram model in both directions.

    train (int32 (tokens,)): Training text as `encode` gives it.
    held_out (dict[str, IntArray]): Held-out texts by name.
    order (int): Order of the n-gram model.
    n_vocabulary (int): Size of the vocabulary, special words included.
    RETURNS (dict[str, Any]): "models" (orders and discounts) and "results" by text, model and direction.
    """
    models: dict[str, dict[str, Any]] = {}
    results: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in held_out}
    for each_order in sorted({1, order}):
        model_name = "unigram" if each_order == 1 else f"{each_order}-gram"
        models[model_name] = {}
        for direction in (FORWARD, BACKWARD):
            model = fit(train, direction, each_order, n_vocabulary)
            models[model_name][direction.name] = describe(model)
            for name, stream in held_out.items():
                results[name].setdefault(model_name, {})[direction.name] = score(model, stream)
            del model  # its tables would otherwise stay while the next ones are counted
        for scores in results.values():
            scores[model_name]["average"] = average(*scores[model_name].values())
    return {"models": models, "results": results}


def describe_text(stream: IntArray) -> dict[str, float]:
    """Count sentences, words and unknown words of an encoded text."""
    n_sentences = int(np.count_nonzero(stream == SENTENCE_START))
    n_words = len(stream) - 2 * n_sentences
    unknown = int(np.count_nonzero(stream == UNKNOWN))
    return {"sentences": n_sentences, "words": n_words, "unknown_share": unknown / n_words if n_words else 0.0}


def format_table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Lay out the perplexities as a table; in brackets those without the boundary."""
    width = max(map(len, results))
    lines = [f"{'text':<{width}}  model    {'forward':>20}  {'backward':>20}  {'average':>20}"]
    for text, models in results.items():
        for model, directions in models.items():
            line = f"{text:<{width}}  {model:<7}"
            for scores in directions.values():
                line += f"  {scores['perplexity']:>10.2f} ({scores['perplexity_without_boundary']:>8.2f})"
            lines.append(line)
    return "\n".join([*lines, "(in brackets: without the boundary token)"])


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--train", nargs="+", required=True, help="files, globs or directories of .txt or .txt.gz")
    parser.add_argument("--eval", nargs="+", required=True, help="held-out texts, each file reported apart")
    vocabulary = parser.add_mutually_exclusive_group(required=True)
    vocabulary.add_argument("--vocabulary", type=Path, help="one word a line, beginning with <S>, </S>, <UNK>")
    vocabulary.add_argument("--vocabulary-size", type=int, help="keep so many words, with <S>, </S>, <UNK>")
    parser.add_argument("--order", type=int, default=5, help="length of the longest n-grams (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args(arguments)


def encode_files(paths: Sequence[Path], vocabulary: Sequence[str]) -> IntArray:
    """Read and encode text files; a ValueError is raised if there is no word in them."""
    stream = encode((words for path in paths for words in read_sentences(path)), vocabulary)
    if not len(stream):
        raise ValueError(f"No words in {', '.join(map(str, paths))}: the text is empty.")
    return stream


def get_vocabulary(options: argparse.Namespace, train_paths: Sequence[Path]) -> list[str]:
    """Read the vocabulary or take it from the training text."""
    if options.vocabulary is not None:
        return read_vocabulary(options.vocabulary)
    if options.vocabulary_size <= len(SPECIAL_WORDS):
        raise ValueError(f"--vocabulary-size must be over {len(SPECIAL_WORDS)}, but is {options.vocabulary_size}.")
    return build_vocabulary((words for path in train_paths for words in read_sentences(path)), options.vocabulary_size)


def make_report(options: argparse.Namespace) -> dict[str, Any]:
    """Do what the command line asks for; the report holds settings, models, texts and perplexities."""
    started = time.perf_counter()
    if options.order < 1:
        raise ValueError(f"--order must be at least 1, but is {options.order}.")
    train_paths = expand_paths(options.train)
    eval_paths = expand_paths(options.eval)
    both = {path.resolve() for path in train_paths} & {path.resolve() for path in eval_paths}
    if both:
        raise ValueError(f"Held-out text must not be trained on, but these are in both: {', '.join(map(str, both))}.")
    vocabulary = get_vocabulary(options, train_paths)
    held_out = {str(path): encode_files([path], vocabulary) for path in eval_paths}
    train = encode_files(train_paths, vocabulary)
    settings = {
        "order": options.order,
        "smoothing": "interpolated modified Kneser-Ney",
        "vocabulary": str(options.vocabulary or "most frequent words of the training text"),
        "vocabulary_size": len(vocabulary),
        "train": [str(path) for path in train_paths],
    }
    texts = {"train": describe_text(train), **{name: describe_text(stream) for name, stream in held_out.items()}}
    report = {"settings": settings, "texts": texts, **run(train, held_out, options.order, len(vocabulary))}
    report["seconds"] = round(time.perf_counter() - started, 1)
    return report


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    options = parse_arguments(arguments)
    try:
        report = make_report(options)
    except (OSError, EOFError, ValueError) as error:
        sys.exit(f"ngram_baseline: {error}")
    print(format_table(report["results"]))
    for model, directions in report["models"].items():
        for direction, orders in directions.items():
            guessed = [str(level["order"]) for level in orders if not level["discounts_estimated"]]
            if guessed:
                print(f"{model} {direction}: fallback discounts at order {', '.join(guessed)}")
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
