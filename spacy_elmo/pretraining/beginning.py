"""How a training run begins, or goes on: its text, its vocabulary, its model, from nothing or from what is there."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from tqdm import tqdm

from ..errors import ConfigError, CorpusError, ElmoWarning, Errors, TrainingError, Warnings, detail_of
from ..lm.bilm import BiLM
from ..lm.lstm import Recurrence, require_compiler
from ..lm.softmax import OutputHead, VocabularyEncoder, build_head
from ..weights.native import VOCABULARY_FILE
from .checkpoint import Checkpoint, load_same_checkpoint
from .coverage import coverage_report, measure_coverage
from .environment import environment
from .feeding import read_batches
from .head_settings import head_settings
from .learner import Learner
from .memory import require_memory
from .progress import Progress
from .run_directory import make_run_directory, require_room, sweep
from .settings import FREE_TO_CHANGE, TrainingSettings
from .speed import can_recur, choose_speed
from .stability import LossGuard
from .starting_model import origin_of
from .vocabulary import Vocabulary
from .word_counts import WordCounts

_MEASURED_STEPS = 4

if TYPE_CHECKING:
    from .loop import Run


@dataclass
class Beginning:
    """What a run starts with.

    settings (TrainingSettings): With all that was left to choose chosen.
    identity (dict): What must be the same if the run is to go on, what was chosen, and where its first weights are from; in
        JSON's types.
    """

    settings: TrainingSettings
    vocabulary: Vocabulary
    learner: Learner
    progress: Progress
    identity: dict[str, Any]


def begin(run: Run, resume: bool) -> Beginning:
    """Set up vocabulary, weights and optimizer, new or from the newest checkpoint. The directory is locked.

    run (Run): The run.
    resume (bool): Go on with the run in the directory; without a checkpoint there, begin.
    RETURNS (Beginning): What to start with.
    RAISES (TrainingError): E212 if the directory holds a run and `resume` is false, E213 if that run has other settings,
        another corpus or another vocabulary, E211 if no checkpoint can be read, E215, E217, E218 if the directory cannot
        be written or is none for a run, E219 if another run is at work in it, E220 if the biLM is too large to train,
        E222 if it is not one over characters, E272 if there are more processes than parts.
    RAISES (CorpusError): E201, E202 if the corpus cannot be read, E203 if it is empty.
    """
    if run.config.token_encoder != "characters":
        raise TrainingError(Errors.E222.format(encoder=run.config.token_encoder))
    if run.workers.is_first:
        make_run_directory(run.directory, run.corpus.shards)
        run.lock.acquire()
        require_room(run.directory, resume)
        sweep(run.directory)
    require_memory(run.config, run.device)
    checkpoint = load_same_checkpoint(run.checkpoints, run.workers)
    if checkpoint is None and run.settings.recurrence == "compiled":
        require_compiler(run.device)
    # Once, not with each checkpoint: it reads the whole corpus, and says what was there when the run began.
    corpus = run.workers.of_first(run.corpus.identity() if run.workers.is_first else None, patiently=True)
    identity = {"config": run.config.to_dict(), "settings": asdict(run.settings), "corpus": corpus}
    identity = json.loads(json.dumps(identity))
    if checkpoint is not None:
        _keep_open(identity["settings"], checkpoint.progress["settings"])
        _require_same(run, identity, checkpoint.progress)
    vocabulary, words, counts = _vocabulary(run, checkpoint)
    identity["vocabulary"] = vocabulary.checksum()
    bilm, head = _model(run, vocabulary)
    if counts is not None:
        head.set_counts(counts)
    chosen = _chosen(run, checkpoint, bilm, head, vocabulary)
    settings = _possible_here(replace(run.settings, **chosen), run)
    learner = Learner(bilm, head, settings, run.workers)
    progress = Progress(words_an_epoch=words, guard=LossGuard(settings.spike))
    if checkpoint is not None:
        learner.restore(checkpoint.parts(), str(run.checkpoints))
        progress = Progress.from_dict(checkpoint.progress)
    begun_from = origin_of(run.initial) if checkpoint is None else checkpoint.progress.get("begun_from")
    return Beginning(settings, vocabulary, learner, progress, {**identity, "chosen": chosen, "begun_from": begun_from})


def _keep_open(here: dict[str, Any], there: dict[str, Any]) -> None:
    """What is left open now, and was decided then, is the same: a preset may leave more open than it did."""
    here.update({name: there[name] for name, value in here.items() if value == "fastest" and name in there})


def _require_same(run: Run, here: dict[str, Any], progress: dict[str, Any]) -> None:
    changed = {
        f"{part}.{name}": (there.get(name), here[part].get(name))
        for part, there in ((part, progress.get(part, {})) for part in here)
        for name in {**here[part], **there}
        if there.get(name) != here[part].get(name) and not (part == "settings" and name in FREE_TO_CHANGE)
    }
    if changed:
        raise TrainingError(Errors.E213.format(directory=run.directory, changed=changed))


def _vocabulary(run: Run, checkpoint: Checkpoint | None) -> tuple[Vocabulary, int, list[int] | None]:
    """The vocabulary, how many words the text has, and how often each of the vocabulary occurs, where that is asked for."""
    path = run.directory / VOCABULARY_FILE
    if checkpoint is not None:
        vocabulary, there = Vocabulary.load(path), checkpoint.progress.get("vocabulary")
        for words in filter(None, (vocabulary, run.given_vocabulary())):
            if (here := words.checksum()) != there:
                raise TrainingError(Errors.E213.format(directory=run.directory, changed={"vocabulary": (there, here)}))
        return vocabulary, checkpoint.progress["words_an_epoch"], None
    counted = _write_vocabulary(run, path) if run.workers.is_first else None
    words, counts = run.workers.of_first(counted, patiently=True)
    return Vocabulary.load(path), words, counts


def _write_vocabulary(run: Run, path: Path) -> tuple[int, list[int] | None]:
    """Count the words of the text, and write those that the head is to predict."""
    settings = run.settings
    counts = WordCounts(run.config.max_characters)
    counts.add(tqdm(run.corpus.sentences(), unit=" sentences", unit_scale=True, desc="counting words"))
    if not counts.words:
        raise CorpusError(Errors.E203.format(shards=[str(shard) for shard in run.corpus.shards[:3]]))
    given = run.given_vocabulary()
    if given is not None:
        given.require_order(counts)
    vocabulary = given or Vocabulary.of_counts(counts, settings.vocabulary_size, settings.min_count)
    try:
        run.metrics.clear()
        vocabulary.save(path)
    except OSError as error:
        raise TrainingError(Errors.E215.format(path=path, detail=detail_of(error))) from error
    coverage = measure_coverage(counts, vocabulary, chain.from_iterable(run.held_out.domains.values()))
    tqdm.write(coverage_report(coverage, run.corpus.report, settings.max_words), file=sys.stderr)
    told = {"coverage": coverage.to_dict(), "environment": environment(run.device, run.workers.world)}
    run.metrics.append(step=0, **asdict(run.corpus.report), **told)
    is_asked_for = settings.softmax.get("distribution") == "unigram"
    return counts.words, vocabulary.frequencies(counts) if is_asked_for else None


def _model(run: Run, vocabulary: Vocabulary) -> tuple[BiLM, OutputHead]:
    """With new weights, or with those that the run goes on with; these may lack a head."""
    initial = run.initial
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(run.settings.seed)
        bilm = BiLM(run.config) if initial is None else initial.bilm
        head = None if initial is None or initial.vocabulary != vocabulary.words else initial.head
        if head is None:
            head = build_head(head_settings(run.settings.softmax, run.config.projection, len(vocabulary)))
    head.bind(VocabularyEncoder(bilm, vocabulary.words))
    return bilm.requires_grad_(True).to(run.device), head.requires_grad_(True).to(run.device)


def _chosen(
    run: Run, checkpoint: Checkpoint | None, bilm: BiLM, head: OutputHead, vocabulary: Vocabulary
) -> dict[str, Any]:
    """What the settings leave to be found out, once for the whole run: parts, precision, recurrence."""
    if checkpoint is not None:
        chosen: dict[str, Any] = checkpoint.progress["chosen"]
    else:
        settings = run.settings
        chosen = {
            "parts": settings.parts or run.workers.world,
            "precision": settings.precision,
            "recurrence": settings.recurrence,
        }
        if "fastest" in chosen.values():
            recurrences = _open(settings.recurrence, get_args(Recurrence))
            # numba may be there for some of the processes only.
            if "compiled" in recurrences and run.workers.sum(int(can_recur(bilm, "compiled"))) != [run.workers.world]:
                recurrences = [kind for kind in recurrences if kind != "compiled"]
            found = _fastest(run, bilm, head, vocabulary, recurrences) if run.workers.is_first else None
            chosen |= run.workers.of_first(found)
    if run.workers.world > chosen["parts"]:
        raise TrainingError(Errors.E272.format(parts=chosen["parts"], processes=run.workers.world))
    return chosen


def _possible_here(settings: TrainingSettings, run: Run) -> TrainingSettings:
    """A run may go on where nothing can be compiled."""
    if settings.recurrence != "compiled":
        return settings
    try:
        require_compiler(run.device)
        return settings
    except ConfigError as error:
        if run.workers.is_first:
            warnings.warn(Warnings.W221.format(problem=error), ElmoWarning, stacklevel=2)
        return replace(settings, recurrence="steps")


def _fastest(
    run: Run, bilm: BiLM, head: OutputHead, vocabulary: Vocabulary, recurrences: Sequence[str]
) -> dict[str, Any]:
    """Measure what is open, on the first text of the run."""
    settings = replace(run.settings, parts=1)
    steps = islice(read_batches(run.corpus, settings, vocabulary, [0]), _MEASURED_STEPS)
    batches = [batch.to(run.device) for step in steps for batch in step.values()]
    precisions = _open(settings.precision, ("float32", "bfloat16"))
    choice = choose_speed(bilm, head, batches, run.device, precisions, recurrences)
    run.metrics.append(step=0, **choice._asdict())
    return {"precision": choice.precision, "recurrence": choice.recurrence}


def _open(setting: str, options: Sequence[str]) -> Sequence[str]:
    return options if setting == "fastest" else (setting,)
