"""`python -m spacy_elmo.pretraining`: train a biLM on running text. Needs torch, not spaCy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import ConfigError, ElmoError, Errors, TrainingError, Warnings, detail_of
from ..lm.config import BiLMConfig
from ..weights.files import read_json
from ..weights.formats import LoadedModel, load_model
from .checkpoint import find_checkpoints, newest_progress
from .distributed import Workers
from .environment import device_of
from .given_text import Split, find_text
from .interrupts import INTERRUPTED, termination_as_interrupt
from .loop import Run
from .options import GROUPS, build_parser
from .presets import PRESETS
from .run_directory import CHECKPOINTS
from .settings import TrainingSettings
from .starting_model import adopt_head
from .vocabulary import Vocabulary

_MOST_THREADS = 1024

# Makes of the options what splits raw text.
Tokenizing = Callable[[argparse.Namespace, TrainingSettings], Split | None]


class Recipe(NamedTuple):
    """What a run is to do.

    initial (LoadedModel | None): The model to go on with.
    config (BiLMConfig): The biLM.
    settings (TrainingSettings): How to train it.
    vocabulary (Vocabulary | None): The words to predict, if they are given.
    """

    initial: LoadedModel | None
    config: BiLMConfig
    settings: TrainingSettings
    vocabulary: Vocabulary | None


def main(
    arguments: Sequence[str] | None = None,
    prog: str = "python -m spacy_elmo.pretraining",
    tokenizing: Tokenizing | None = None,
) -> int:
    """Run the command.

    arguments (Sequence[str] | None): Those of the process by default.
    prog (str): Name of the command in its help.
    tokenizing (Callable | None): What splits raw text, by the options; without it there are no options for that.
    RETURNS (int): Exit code: 0, 1 after an error, which is printed, 130 after Ctrl-C or SIGTERM.
    """
    options = build_parser(prog, tokenizing is not None).parse_args(arguments)
    try:
        with termination_as_interrupt():
            pretrain(options, tokenizing)
    except ElmoError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        path = error.filename or options.output
        print(Errors.E406.format(path=path, detail=error.strerror or error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        saved = find_checkpoints(options.output / CHECKPOINTS)
        state = f"{saved[0]} is saved; go on with --resume" if saved else "no step was saved yet"
        print(f"Interrupted: {state}.", file=sys.stderr)
        return INTERRUPTED
    return 0


def pretrain(options: argparse.Namespace, tokenizing: Tokenizing | None = None) -> None:
    """Train as the options say.

    options (Namespace): From `build_parser`.
    tokenizing (Callable | None): As for `main`.
    RAISES (ElmoError): If the run cannot start or go on. (KeyboardInterrupt): After Ctrl-C; a checkpoint was saved.
    """
    recipe = read_recipe(options)
    split = None if tokenizing is None else tokenizing(options, recipe.settings)
    workers = Workers.join()
    try:
        device = device_of(workers.local_gpu(options.gpu_id))
        if options.threads is not None:
            _set_threads(options.threads)
        output, resume = options.output, options.resume
        shards, held_out = find_text(options.sources, options.held_out, output, resume, workers, split)
        run = Run(
            output,
            recipe.config,
            recipe.settings,
            shards,
            held_out,
            device,
            workers,
            recipe.initial,
            recipe.vocabulary,
            options.tracker,
        )
        run.begin(resume)
        _report(run, resume)
        run.train()
        if workers.is_first:
            print(_summary(run))
    finally:
        workers.leave()


def read_recipe(options: argparse.Namespace) -> Recipe:
    """Put together what the preset, the config file and the options say, each before the one named before it.

    options (Namespace): From `build_parser`.
    RETURNS (Recipe): What the run is to do. For one that goes on, the model it was begun from is not read again.
    RAISES (ConfigError): E001, E002 for a biLM that cannot be, E286 if settings do not fit the output head of a model to go
        on with, E410 for a config that cannot be read, E416 if a biLM is described and such a model is given.
    RAISES (TrainingError): E216, E221 for training settings that cannot be, E287 if a run that is there was not begun from a
        model. (CorpusError): As `Vocabulary.load`. (WeightsError): As `formats.load_model`.
    """
    preset = PRESETS.get(options.preset, {})
    begun = newest_progress(options.output / CHECKPOINTS) if options.resume else None
    try:
        given = _given(options)
        settings = TrainingSettings.from_dict({**preset.get("training", {}), **given["training"]})
        goes_on_with_model = begun is not None and bool(begun.get("begun_from")) and not given["bilm"]
        if options.init_from is None and not goes_on_with_model:
            config = BiLMConfig.from_dict({**preset.get("bilm", {}), **given["bilm"]})
            return Recipe(None, config, settings, _vocabulary(options))
    except RecursionError as error:  # while it is read, or while a message shows it
        path = options.config or "the command line"
        raise ConfigError(Errors.E410.format(path=path, detail="it is nested too deeply")) from error
    if given["bilm"]:
        raise ConfigError(Errors.E416.format(names=sorted(given["bilm"]), source=options.init_from))
    if begun is not None:
        if not begun.get("begun_from"):
            raise TrainingError(Errors.E287.format(directory=options.output))
        of_head = {} if "softmax" in given["training"] else {"softmax": begun["settings"]["softmax"]}
        return Recipe(None, BiLMConfig.from_dict(begun["config"]), replace(settings, **of_head), _vocabulary(options))
    vocabulary = _vocabulary(options)
    initial, settings = adopt_head(
        load_model(options.init_from, with_softmax=True), settings, given["training"], vocabulary
    )
    return Recipe(initial, initial.bilm.config, settings, vocabulary)


def _given(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What the config and the options say, by the objects of the config."""
    given = {title: {} for title in GROUPS} if options.config is None else _read_config(options.config)
    for title, settings in GROUPS.items():
        given[title] |= {f.name: getattr(options, f.name) for f in fields(settings) if hasattr(options, f.name)}
    return given


def _vocabulary(options: argparse.Namespace) -> Vocabulary | None:
    return None if options.vocabulary is None else Vocabulary.load(options.vocabulary)


def _read_config(path: Path) -> dict[str, dict[str, Any]]:
    try:
        config = read_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(Errors.E410.format(path=path, detail=detail_of(error))) from error
    if not isinstance(config, dict) or not all(isinstance(config.get(title, {}), dict) for title in GROUPS):
        raise ConfigError(Errors.E410.format(path=path, detail="it has no such objects"))
    # The config.json of weights has their format besides, and may be used as it is.
    unknown = sorted(config.keys() - GROUPS.keys() - {"format"})
    if unknown or not config.keys() & GROUPS.keys():
        raise ConfigError(Errors.E410.format(path=path, detail=f"it has {unknown or 'neither'}"))
    return {title: dict(config.get(title, {})) for title in GROUPS}


def _set_threads(threads: int) -> None:
    if not 1 <= threads <= _MOST_THREADS:
        expected = f"a whole number from 1 to {_MOST_THREADS}"
        raise ConfigError(Errors.E411.format(name="threads", value=threads, expected=expected))
    torch.set_num_threads(threads)


def _report(run: Run, resume: bool) -> None:
    if not run.workers.is_first:
        return
    parameters = sum(parameter.numel() for parameter in run.learner.parameters)
    processes = f", {run.workers.world} processes" if run.workers.world > 1 else ""
    words = f"{len(run.vocabulary):,} words in the vocabulary"
    recurrence = "step by step" if run.settings.recurrence == "steps" else run.settings.recurrence
    way = f"{run.settings.precision}, LSTMs {recurrence}"
    print(f"{parameters:,} parameters, {words}, on {run.device}{processes}; {way}", file=sys.stderr)
    if run.progress.step:
        print(f"Going on from step {run.progress.step:,}, {run.progress.words:,} words read", file=sys.stderr)
        return
    if resume:
        print(f"There is no run to go on with in {run.directory}: one begins", file=sys.stderr)
    settings = run.settings
    steps = run.progress.words_an_epoch * settings.epochs // (settings.batch_words * settings.parts)
    if steps < settings.warmup_steps and settings.schedule != "slanted-triangular":
        print(Warnings.W228.format(steps=steps, warmup=settings.warmup_steps), file=sys.stderr)


def _summary(run: Run) -> str:
    progress = run.progress
    lines = [f"Wrote the weights of step {progress.step:,} to {run.directory}, after {progress.words:,} words"]
    if (found := run.held_out.at(progress.step)) is not None:
        lines.append(f"Held-out perplexity: forward {found.forward:.2f}, backward {found.backward:.2f}")
    skipped, back = run.learner.window().skipped, progress.rollbacks
    if skipped or back:
        lines.append(f"Steps passed over: {skipped:,}; taken back to earlier weights: {back:,} times")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
