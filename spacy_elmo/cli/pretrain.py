"""`python -m spacy elmo pretrain`: the same as `python -m spacy_elmo.pretraining`."""

from __future__ import annotations

import typer

from . import elmo_cli

# All arguments go on as they are, --help too.
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


@elmo_cli.command("pretrain", context_settings=_PASS_ON, add_help_option=False)
def pretrain_cli(context: typer.Context) -> None:
    """Train a biLM on running text; --help shows the options."""
    from ..pretraining.__main__ import main

    raise typer.Exit(main(context.args, prog="python -m spacy elmo pretrain"))
