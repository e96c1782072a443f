"""`python -m spacy elmo pretrain`: the same as `python -m spacy_elmo.pretraining`, and raw text may be given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..errors import ConfigError, CorpusError, Errors
from . import elmo_cli

if TYPE_CHECKING:
    from argparse import Namespace

    from ..pretraining.given_text import Split
    from ..pretraining.settings import TrainingSettings

_MOST_PROCESSES = 1024

# All arguments go on as they are, --help too.
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


@elmo_cli.command("pretrain", context_settings=_PASS_ON, add_help_option=False)
def pretrain_cli(context: typer.Context) -> None:
    """Train a biLM on running text; --help shows the options."""
    from ..pretraining.__main__ import main

    raise typer.Exit(main(context.args, prog="python -m spacy elmo pretrain", tokenizing=tokenizing))


def tokenizing(options: Namespace, settings: TrainingSettings) -> Split | None:
    """What splits raw text as the options say.

    options (Namespace): With "tokenizer", "plain_text" and "n_process".
    settings (TrainingSettings): How long a sentence may be.
    RETURNS (Callable | None): Splits, see `given_text`; None if no tokenizer is asked for.
    RAISES (ConfigError): E411 for options that cannot be.
    """
    from ..pretraining.text_files import TextFile
    from .raw_text import tokenize_sources

    if not 1 <= options.n_process <= _MOST_PROCESSES:
        expected = f"a whole number from 1 to {_MOST_PROCESSES}"
        raise ConfigError(Errors.E411.format(name="n-process", value=options.n_process, expected=expected))
    if options.tokenizer is None:
        if options.plain_text:
            raise ConfigError(Errors.E411.format(name="plain-text", value=True, expected="given with --tokenizer"))
        return None

    def split(files: list[Path], directory: Path) -> list[Path]:
        raw = [path for path in files if options.plain_text or TextFile(path).is_json]
        if not raw:
            raise CorpusError(Errors.E420.format(path=files[0]))
        split_already = [path for path in files if path not in raw]
        fresh = tokenize_sources(
            raw, directory, options.tokenizer, options.n_process, settings.max_words, options.plain_text
        )
        return [*split_already, *fresh]

    return split
