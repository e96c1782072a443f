"""`python -m spacy elmo …`. spaCy imports this for every command of its own, so it imports as little as it can."""

from __future__ import annotations

import typer
from spacy.cli._util import app

elmo_cli = typer.Typer(
    name="elmo",
    help="ELMo: contextual word vectors, and the training of their models.",
    no_args_is_help=True,
)
app.add_typer(elmo_cli)

# Each of these adds a command.
from . import assemble, convert, embed, info, init_config, mixes, perplexity, pretrain, report, tokenize  # noqa: E402, F401
