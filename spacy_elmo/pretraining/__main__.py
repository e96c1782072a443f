"""`python -m spacy_elmo.pretraining`: train a biLM on running text. Needs torch, not spaCy."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from ..errors import ConfigError, CorpusError, ElmoError, Errors, TrainingError
from ..lm.config import BiLMConfig
from .checkpoint import find_checkpoints
from .corpus import Corpus, Sentence, find_shards
from .interrupts import INTERRUPTED, termination_as_interrupt
from .loop import Run
from .run_directory import CHECKPOINTS, is_file_of_run
from .settings import TrainingSettings

_GROUPS: dict[str, type] = {"bilm": BiLMConfig, "training": TrainingSettings}
_OTHER_FLAGS = {"bfloat16": ["--bf16"]}
# Settings of biLMs that can be read but not trained.
_NO_FLAGS = {"token_encoder", "n_words", "word_dim", "n_characters"}
_MOST_THREADS = 1024


def main(arguments: Sequence[str] | None = None, prog: str = "python -m spacy_elmo.pretraining") -> int:
    """Run the command.

    arguments (Sequence[str] | None): Those of the process by default.
    prog (str): Name of the command in its help.
    RETURNS (int): Exit code: 0, 1 after an error, which is printed, 130 after Ctrl-C or SIGTERM.
    """
    options = build_parser(prog).parse_args(arguments)
    try:
        with termination_as_interrupt():
            pretrain(options)
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


def pretrain(options: argparse.Namespace) -> None:
    """Train as the options say.

    options (Namespace): From `build_parser`.
    RAISES (ElmoError): If the run cannot start or go on. (KeyboardInterrupt): After Ctrl-C; a checkpoint was saved.
    """
    config, settings = read_settings(options)
    device = _device(options.gpu_id)
    if options.threads is not None:
        _set_threads(options.threads)
    # A directory or a pattern may lead to what the run itself wrote there before.
    of_run = partial(is_file_of_run, directory=options.output)
    shards = find_shards(options.sources, of_run)
    held_out = _held_out(options.held_out, of_run)
    run = Run(options.output, config, settings, shards, held_out, device)
    run.begin(resume=options.resume)
    _report(run)
    run.train()
    print(f"Wrote the weights to {options.output}")


def _directory(text: str) -> Path:
    """An empty name, such as that of a shell variable that is not set, would mean the directory where one happens to be."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty")
    return Path(text)


def build_parser(prog: str) -> argparse.ArgumentParser:
    """RETURNS (ArgumentParser): With an option for each setting that a training run has."""
    parser = argparse.ArgumentParser(prog=prog, description="Train a biLM on running text: one sentence a line.")
    add = parser.add_argument
    add("sources", nargs="+", help="files (.txt, .txt.gz), directories, or glob patterns in quotes")
    add("--output", type=_directory, required=True, help="directory of the run and of its weights")
    add(
        "--held-out",
        action="append",
        default=[],
        metavar="SOURCE",
        help="text for perplexity; may be repeated, and be other text on --resume, which is then scored",
    )
    add(
        "--resume",
        action="store_true",
        help="go on from the newest checkpoint in the output directory",
    )
    add(
        "--config",
        type=Path,
        help='JSON, {"bilm": {…}, "training": {…}}; options go before it',
    )
    add("--gpu-id", type=int, default=-1, help="GPU to train on, -1 for the CPU (default: -1)")
    add("--threads", type=int, help="threads of torch (default: as many as torch chooses)")
    for title, settings in _GROUPS.items():
        group = parser.add_argument_group(f"{title} settings")
        helps, hints = _helps(settings), get_type_hints(settings)
        for setting in (setting for setting in fields(settings) if setting.name not in _NO_FLAGS):
            flags = [f"--{setting.name.replace('_', '-')}", *_OTHER_FLAGS.get(setting.name, [])]
            default = json.dumps(_default(setting))
            text = f"{helps[setting.name]} (default: {default})".replace("%", "%%")
            # Only what is given on the command line comes to be in the options, to go before the config.
            group.add_argument(*flags, help=text, default=argparse.SUPPRESS, **_kind(hints[setting.name]))
    return parser


def read_settings(options: argparse.Namespace) -> tuple[BiLMConfig, TrainingSettings]:
    """Put together what the config file and the options say.

    options (Namespace): From `build_parser`.
    RETURNS (tuple[BiLMConfig, TrainingSettings]): The biLM, and how to train it.
    RAISES (ConfigError): E001, E002 for a biLM that cannot be, E410 for a config that cannot be read.
    RAISES (TrainingError): E216, E221 for training settings that cannot be.
    """
    try:
        given = {} if options.config is None else _read_config(options.config)
        for title, settings in _GROUPS.items():
            on_command_line = {f.name: getattr(options, f.name) for f in fields(settings) if hasattr(options, f.name)}
            given[title] = {**given.get(title, {}), **on_command_line}
        return BiLMConfig.from_dict(given["bilm"]), TrainingSettings.from_dict(given["training"])
    except RecursionError as error:  # while it is read, or while a message shows it
        path = options.config or "the command line"
        raise ConfigError(Errors.E410.format(path=path, detail="it is nested too deeply")) from error


def _read_config(path: Path) -> dict[str, dict[str, Any]]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(Errors.E410.format(path=path, detail=error)) from error
    if not isinstance(config, dict) or not all(isinstance(config.get(title, {}), dict) for title in _GROUPS):
        raise ConfigError(Errors.E410.format(path=path, detail="it has no such objects"))
    # The config.json of weights has their format besides, and may be used as it is.
    unknown = sorted(config.keys() - _GROUPS.keys() - {"format"})
    if unknown or not config.keys() & _GROUPS.keys():
        raise ConfigError(Errors.E410.format(path=path, detail=f"it has {unknown or 'neither'}"))
    return {title: config[title] for title in _GROUPS if title in config}


def _device(gpu_id: int) -> torch.device:
    if gpu_id < 0:
        return torch.device("cpu")
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpu_id >= there:
        raise TrainingError(Errors.E412.format(gpu_id=gpu_id, there=f"{there} GPUs" if there else "no GPU"))
    return torch.device("cuda", gpu_id)


def _set_threads(threads: int) -> None:
    if not 1 <= threads <= _MOST_THREADS:
        expected = f"a whole number from 1 to {_MOST_THREADS}"
        raise ConfigError(Errors.E411.format(name="threads", value=threads, expected=expected))
    torch.set_num_threads(threads)


def _held_out(sources: list[str], leave_out: Callable[[Path], bool]) -> list[Sentence]:
    """Long lines are cut as by default, whatever cuts those of the corpus: perplexities of all runs compare."""
    if not sources:
        return []
    sentences = list(Corpus(find_shards(sources, leave_out)).sentences())
    if not sentences:
        raise CorpusError(Errors.E203.format(shards=sources))
    return sentences


def _report(run: Run) -> None:
    parameters = sum(parameter.numel() for parameter in run.parameters)
    print(
        f"{parameters:,} parameters, {len(run.vocabulary):,} words in the vocabulary, on {run.device}", file=sys.stderr
    )
    report = run.corpus.report
    if run.step:
        print(f"Going on from step {run.step:,}, {run.words:,} words read", file=sys.stderr)
    else:
        read = f"{report.words:,} words in {report.sentences:,} sentences an epoch"
        empty = f"{report.empty_lines:,} empty lines left out"
        cut = f"{report.cut_lines:,} lines longer than {run.corpus.max_words} words cut"
        print(f"{read}; {empty}; {cut}", file=sys.stderr)


def _default(setting: Field[Any]) -> Any:
    return setting.default if setting.default_factory is MISSING else setting.default_factory()


def _helps(settings: type) -> dict[str, str]:
    """What the docstring says of each setting; nothing where docstrings are stripped."""
    entry = re.compile(r"^    (\w+) \([^\n]*?\): (.*?)(?=^    \w|^$|\Z)", re.MULTILINE | re.DOTALL)
    entries = entry.findall(settings.__doc__ or "")
    helps = {name: " ".join(text.split()) for name, text in entries}
    return {setting.name: helps.get(setting.name, "") for setting in fields(settings)}


def _kind(hint: Any) -> dict[str, Any]:
    """How argparse reads a value of this type."""
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if hint in (int, float):
        return {"type": hint, "metavar": "NUMBER"}
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if get_origin(hint) is UnionType:
        return {"type": _or_none(get_args(hint)[0]), "metavar": "NUMBER|none"}
    return {"type": _json, "metavar": "JSON"}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from error


def _or_none(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        return None if text.lower() == "none" else convert(text)

    return number


if __name__ == "__main__":
    sys.exit(main())
