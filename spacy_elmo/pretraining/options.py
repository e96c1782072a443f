"""The options of `python -m spacy_elmo.pretraining`: one for each setting, and those of the run."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..lm.config import BiLMConfig
from ..weights.embedded import EMBEDDED_MODELS
from .presets import PresetName
from .settings import TrainingSettings
from .text_files import SUFFIXES

GROUPS: dict[str, type] = {"bilm": BiLMConfig, "training": TrainingSettings}
"""What the objects of a config are settings of."""

# Settings of biLMs that can be read but not trained.
_NO_FLAGS = {"token_encoder", "n_words", "word_dim", "n_characters"}

# Under which titles the help shows the settings: from the one named to the next one named.
_TITLES = {
    "character_dim": ("the biLM", "Shape and numerics of a new biLM; one that is gone on with keeps its own."),
    "epochs": ("how the text is read", None),
    "optimizer": ("how it learns", None),
    "vocabulary_size": ("the softmax", "Of a model that is gone on with, its own is kept if it has one."),
    "precision": ("speed", None),
    "seed": ("the course of the run", None),
}


def build_parser(prog: str, tokenizes: bool = False) -> argparse.ArgumentParser:
    """The parser. Of the settings only those that are given come to be in its result.

    prog (str): Name of the command in its help.
    tokenizes (bool): Whether there is a tokenizer for raw text.
    RETURNS (ArgumentParser): With an option for each setting that a training run has.
    """
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} SOURCE ... --output DIRECTORY [options]",
        description="Train a biLM on running text, or go on with the training of one.",
        epilog="Settings are taken from the preset, then from the config, then from the options: what comes last holds.",
        allow_abbrev=False,
    )
    _add_options_of_run(parser)
    if tokenizes:
        _add_options_of_tokenizer(parser)
    group: Any = parser
    for settings in GROUPS.values():
        helps, hints = _helps(settings), get_type_hints(settings)
        for setting in (setting for setting in fields(settings) if setting.name not in _NO_FLAGS):
            if setting.name in _TITLES:
                group = parser.add_argument_group(*_TITLES[setting.name])
            flag = f"--{setting.name.replace('_', '-')}"
            text = f"{helps[setting.name]} (default: {json.dumps(_default(setting))})".replace("%", "%%")
            group.add_argument(flag, help=text, default=argparse.SUPPRESS, **_kind(hints[setting.name]))
    return parser


def _add_options_of_run(parser: argparse.ArgumentParser) -> None:
    suffixes = ", ".join(SUFFIXES[::3])
    parser.add_argument(
        "sources",
        nargs="+",
        type=_name,
        metavar="SOURCE",
        help=f"text with a sentence a line: files ({suffixes}; also .gz, .zst), directories of such, glob patterns in "
        "quotes, or - for standard input, which is kept in the output directory",
    )
    add = parser.add_argument
    add("--output", type=_path, required=True, metavar="DIRECTORY", help="directory of the run and of its weights")
    add(
        "--held-out",
        action="append",
        type=_name,
        default=[],
        metavar="[DOMAIN=]SOURCE",
        help="text for perplexity, never trained on; may be repeated, and be named by domains, each of which is then scored "
        "by itself too",
    )
    add(
        "--resume",
        action="store_true",
        help="go on from the newest checkpoint in the output directory, if there is one",
    )
    add(
        "--init-from",
        type=_name,
        metavar="MODEL",
        help="a model to go on with, if it reads characters: a directory, file, pair, short name or address, or "
        f"{' or '.join(EMBEDDED_MODELS)}, which come with spacy-elmo; on --resume it is not needed again",
    )
    add(
        "--vocabulary",
        type=_path,
        metavar="FILE",
        help="words to predict, one a line, frequent ones first, as of bilm-tf in place of a number of them "
        "(default: those of MODEL, or the most frequent ones of the text)",
    )
    add("--preset", choices=get_args(PresetName), help="settings by the name of a recipe")
    add("--config", type=_path, metavar="FILE", help='settings in JSON: {"bilm": {…}, "training": {…}}')
    add("--gpu-id", type=int, default=-1, metavar="NUMBER", help="GPU to train on, -1 for the CPU (default: -1)")
    add("--threads", type=int, metavar="NUMBER", help="threads of torch (default: as many as torch chooses)")
    add(
        "--tracker",
        action="append",
        default=[],
        metavar="NAME",
        help="who is told of all that is measured, beside metrics.jsonl: tensorboard or wandb; may be repeated",
    )


def _add_options_of_tokenizer(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "raw text", "Texts are split into sentences and words first, once for the whole run."
    )
    group.add_argument(
        "--tokenizer",
        type=_name,
        metavar="NAME",
        help='split the "text" of each line of .jsonl files: code of a language, or name or path of a pipeline',
    )
    group.add_argument(
        "--plain-text", action="store_true", help="split the lines of .txt files and of standard input, too"
    )
    group.add_argument("--n-process", type=int, default=1, metavar="NUMBER", help="processes that split (default: 1)")


def _name(text: str) -> str:
    """An empty name, such as that of a shell variable that is not set, would mean the directory where one happens to be."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def _path(text: str) -> Path:
    return Path(_name(text))


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
