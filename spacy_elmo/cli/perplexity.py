"""`python -m spacy elmo perplexity`: how well a model predicts text, and how likely each of its words is."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from ..errors import CorpusError, Errors, WeightsError
from . import elmo_cli
from .messages import errors_as_messages
from .models import SOURCE_HELP, load_noting, print_notes
from .output_files import refuse_directory, whole_file
from .text_lines import STANDARD_INPUT, TextLine, read_sentences

if TYPE_CHECKING:
    from ..lm.scoring import SentenceScores, WordIds
    from ..weights.formats import LoadedModel
    from ..weights.source import Source


# Sentences that are sorted by length together have so many times the words of a batch.
_BATCHES_TOGETHER = 8
_WORD_COLUMNS = ("file", "line", "word", "known", "forward", "backward", "surprisal_forward", "surprisal_backward")
_SENTENCE_COLUMNS = (
    *("file", "line", "words", "unknown", "forward", "backward"),
    *("perplexity_forward", "perplexity_backward", "perplexity_joint"),
)


@dataclass
class DomainScore:
    """What was found in one text.

    name (str): Its file, or "all".
    ends (bool): Whether the two boundaries of each sentence count: its end, forward, and its begin, backward.
    forward, backward (float): Sum of the log-probabilities that count, in nats.
    """

    name: str
    ends: bool
    sentences: int = 0
    words: int = 0
    unknown: int = 0
    forward: float = 0.0
    backward: float = 0.0

    @property
    def predicted(self) -> int:
        """Words predicted in each direction, boundaries included where they count."""
        return self.words + self.sentences * self.ends

    def add(self, other: DomainScore) -> None:
        """Count another text in."""
        for field in ("sentences", "words", "unknown", "forward", "backward"):
            setattr(self, field, getattr(self, field) + getattr(other, field))

    def perplexities(self) -> tuple[float, float, float]:
        """RETURNS (tuple): Forward, backward, and the geometric mean of both."""
        from ..pretraining.evaluate import bounded_exp

        forward, backward = -self.forward / self.predicted, -self.backward / self.predicted
        return bounded_exp(forward), bounded_exp(backward), bounded_exp((forward + backward) / 2)

    def to_dict(self) -> dict[str, Any]:
        """RETURNS (dict): All that is known, in JSON's types; null for a perplexity that is beyond floats."""
        names = ("perplexity_forward", "perplexity_backward", "perplexity_joint")
        found = {name: value if math.isfinite(value) else None for name, value in zip(names, self.perplexities())}
        counts = {name: getattr(self, name) for name in ("name", "sentences", "words", "unknown", "predicted")}
        return {**counts, "unknown_rate": self.unknown / self.words, **found}


@elmo_cli.command("perplexity")
def perplexity_cli(
    model: str = typer.Argument(..., help=f"{SOURCE_HELP} It must have its softmax."),
    sources: list[str] = typer.Argument(
        ...,
        metavar="FILES",
        help="Text, one sentence a line, words separated by spaces, or .jsonl with the words of a sentence as a list under "
        '"tokens"; .gz and .zst of both, directories of such files, or glob patterns in quotes; - for standard input. Each file '
        "is scored by itself.",
    ),
    per_word: Path = typer.Option(
        None,
        help="File to write, .tsv: each word with its log-probability from the left (forward) and from the right (backward), "
        "natural logarithms, and its surprisal in bits.",
    ),
    per_sentence: Path = typer.Option(
        None,
        help="File to write, .tsv: each sentence with the sums of its log-probabilities, natural logarithms, and its "
        "perplexities.",
    ),
    ends: bool = typer.Option(True, "--ends/--no-ends", help="Whether the ends of sentences count as words."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
    batch_words: int = typer.Option(4096, min=1, help="Words that run together; bounds the memory."),
    gpu_id: int = typer.Option(-1, help="GPU to use, -1 for the CPU."),
    threads: int = typer.Option(None, min=1, help="Threads of the CPU. Default: torch's."),
    offline: bool = typer.Option(False, "--offline", help="Download nothing."),
) -> None:
    """Show how well a model predicts text: perplexity from the left, from the right, and of both, over its whole
    vocabulary, for each file and for all. Words outside the vocabulary count as the unknown word."""
    if per_word is not None and per_word == per_sentence:
        raise typer.BadParameter("--per-word and --per-sentence name the same file.")
    with errors_as_messages(), _threads(threads):
        files = find_texts(sources)
        for path in filter(None, (per_word, per_sentence)):
            refuse_directory(path)
        loaded = load_scoring_model(model, offline, gpu_id)
        found = score_files(loaded, files, per_word, per_sentence, ends=ends, batch_words=batch_words)
    if as_json:
        *parts, whole = [score.to_dict() for score in found]
        known = {"model": model, "vocabulary": len(loaded.vocabulary or ()), "ends": ends}
        print(json.dumps({**known, "files": parts, "all": whole, "notes": loaded.notes}, indent=2))
        return
    _print_table(found, len(loaded.vocabulary or ()))
    print_notes(loaded.notes)


def find_texts(sources: Sequence[str]) -> list[Path]:
    """Find the files to score.

    sources (Sequence[str]): Files, directories or glob patterns as `find_shards` takes them; "-" for standard input.
    RETURNS (list[Path]): The files, those of one source by name.
    RAISES (CorpusError): E200, E201 as `find_shards`, E400 if a file is not there. (typer.BadParameter): If one is found twice.
    """
    from ..pretraining.corpus import find_shards

    found: list[Path] = []
    for source in sources:
        path = Path(source)
        if not source:
            raise CorpusError(Errors.E400.format(path=repr(source), detail="it names no file"))
        if os.path.isdir(path) or (has_magic(source) and not os.path.exists(path)):
            found += find_shards([source])
        elif path == STANDARD_INPUT or os.path.exists(path):
            found.append(path)
        else:
            raise CorpusError(Errors.E400.format(path=path, detail="there is no such file"))
    _refuse_twice(found)
    return found


def _refuse_twice(paths: Sequence[Path]) -> None:
    seen = set()
    for path in paths:
        # The same file can be found under several names: by a pattern, and in a directory.
        name = path if path == STANDARD_INPUT else os.path.realpath(path)
        if name in seen:
            raise typer.BadParameter(f"{path} is given twice.")
        seen.add(name)


def load_scoring_model(source: Source, offline: bool = False, gpu_id: int = -1) -> LoadedModel:
    """Load a model that can tell how likely a word is.

    source (str | Path | Sequence): As for `load_model`.
    offline (bool): Download nothing.
    gpu_id (int): GPU to use, -1 for the CPU.
    RETURNS (LoadedModel): Has a head and a vocabulary.
    RAISES (WeightsError): E456 if it has no softmax, or one without its vocabulary; else as `load_model`.
    RAISES (TrainingError): E412 if there is no such GPU.
    """
    from ..lm.scoring import scoring_problem
    from ..pretraining.environment import device_of
    from ..weights.source import locate

    device = device_of(gpu_id)
    files = locate(source, with_softmax=True, offline=offline)
    model = load_noting(files, with_softmax=True)
    problem = scoring_problem(model.head, model.vocabulary)
    if problem is not None or model.head is None:
        raise WeightsError(Errors.E456.format(source=source, problem=problem))
    model.bilm.to(device)
    model.head.to(device)
    return model


def score_files(
    model: LoadedModel,
    paths: Sequence[Path],
    per_word: Path | None = None,
    per_sentence: Path | None = None,
    *,
    ends: bool = True,
    batch_words: int = 4096,
) -> list[DomainScore]:
    """Score text, in memory that does not grow with it.

    model (LoadedModel): From `load_scoring_model`.
    paths (Sequence[Path]): Files as `read_sentences` takes them; "-" for standard input.
    per_word (Path | None): File for a line a word.
    per_sentence (Path | None): File for a line a sentence.
    ends (bool): Whether the end of each sentence counts forward, and its begin backward.
    batch_words (int): Words that run together.
    RETURNS (list[DomainScore]): Of each file, and of all.
    RAISES (CorpusError): As `read_sentences`; E457 if a file has no word. (ElmoError): E406 if one cannot be written.
    """
    from ..lm.scoring import WordIds, word_log_probabilities
    from ..pretraining.batches import group_by_words

    if model.head is None or model.vocabulary is None:
        raise WeightsError(Errors.E456.format(source=model.facts.get("source"), problem="it was loaded without"))
    words = WordIds(model.vocabulary)
    whole, found = DomainScore("all", ends), []
    with ExitStack() as stack:
        stack.enter_context(model.head.prepared())
        tables = [_table(stack, per_word, _WORD_COLUMNS), _table(stack, per_sentence, _SENTENCE_COLUMNS)]
        for path in paths:
            domain = DomainScore(str(path), ends)
            for batch in group_by_words(_lines(path), batch_words * _BATCHES_TOGETHER, _words_of):
                sentences = [line.text.split() for line in batch]
                scores = word_log_probabilities(model.bilm, model.head, words.id_of, sentences, batch_words)
                for line, sentence, score in zip(batch, sentences, scores):
                    one = _count(domain.name, sentence, score, words, ends)
                    domain.add(one)
                    _write(tables, line.number, sentence, score, one, words)
            if not domain.words:
                raise CorpusError(Errors.E457.format(path=path))
            whole.add(domain)
            found.append(domain)
    return [*found, whole]


def _lines(path: Path) -> Iterator[TextLine]:
    """The lines of a text that have words."""
    return (line for line in read_sentences(path) if line.text.strip())


def _words_of(line: TextLine) -> int:
    """About how many there are."""
    return line.text.count(" ") + 1


def _count(name: str, sentence: Sequence[str], score: SentenceScores, words: WordIds, ends: bool) -> DomainScore:
    unknown = sum(not words.knows(word) for word in sentence)
    forward, backward = (score.words.double().sum(1) + score.boundaries.double() * ends).tolist()
    return DomainScore(name, ends, 1, len(sentence), unknown, forward, backward)


def _table(stack: ExitStack, path: Path | None, columns: Sequence[str]) -> TextIO | None:
    """A file for rows of these columns, if one is wanted."""
    if path is None:
        return None
    fresh = stack.enter_context(whole_file(path))
    file = stack.enter_context(open(fresh, "w", encoding="utf-8", newline="\n"))
    print(*columns, sep="\t", file=file)
    return file


def _write(
    tables: Sequence[TextIO | None],
    line: int,
    sentence: Sequence[str],
    score: SentenceScores,
    one: DomainScore,
    words: WordIds,
) -> None:
    of_words, of_sentences = tables
    if of_words is not None:
        for word, forward, backward in zip(sentence, *score.words.tolist()):
            surprisal = (_number(-value / math.log(2)) for value in (forward, backward))
            known = int(words.knows(word))
            row = (one.name, line, word, known, _number(forward), _number(backward), *surprisal)
            print(*row, sep="\t", file=of_words)
    if of_sentences is not None:
        sums = (_number(value) for value in (one.forward, one.backward, *one.perplexities()))
        print(one.name, line, one.words, one.unknown, *sums, sep="\t", file=of_sentences)


def _number(value: float) -> str:
    return f"{value + 0.0:.6g}"


def _print_table(found: Sequence[DomainScore], vocabulary: int) -> None:
    from wasabi.printer import Printer

    shown = found[:1] if len(found) == 2 else found  # of one file there is no more to say of all
    header = ["text", "sentences", "words", "unknown", "forward", "backward", "joint"]
    rows = []
    for score in shown:
        rate = f"{100 * score.unknown / score.words:.2f} %"
        counts = (score.name, f"{score.sentences:,}", f"{score.words:,}", rate)
        rows.append([*counts, *(f"{value:.2f}" for value in score.perplexities())])
    Printer(line_max=100).table(rows, header=header, divider=True, aligns=["l", *"r" * (len(header) - 1)])
    counted = "every word and the end of each sentence" if found[-1].ends else "every word, but no end of a sentence"
    print(f"Perplexity over a vocabulary of {vocabulary:,} words; {counted}; unknown words count as <UNK>.")


@contextmanager
def _threads(threads: int | None) -> Iterator[None]:
    if threads is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
