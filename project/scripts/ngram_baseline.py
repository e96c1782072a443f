"""Held-out perplexity of n-gram language models, as baselines for a biLM on the same closed vocabulary.

Two models are counted on the training text for each direction: a unigram, and an interpolated n-gram with modified
Kneser-Ney discounts (see `kneser_ney.py`). A direction is scored on exactly the tokens a biLM is scored on: every word
of a sentence and one boundary token. Words outside the vocabulary become <UNK>, which is a word like any other. So does
text that is spelled <S> or </S>.

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
from glob import glob
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from kneser_ney import BACKWARD, FORWARD, SENTENCE_END, SENTENCE_START, IntArray, describe, fit, score

SPECIAL_WORDS = ("<S>", "</S>", "<UNK>")
UNKNOWN = SPECIAL_WORDS.index("<UNK>")
TEXT_SUFFIXES = (".txt", ".txt.gz")


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
