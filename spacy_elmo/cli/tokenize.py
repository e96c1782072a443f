"""`python -m spacy elmo tokenize`: raw text as files to train a biLM on."""

from __future__ import annotations

from pathlib import Path

import typer

from . import elmo_cli
from .messages import errors_as_messages


@elmo_cli.command("tokenize")
def tokenize_cli(
    sources: list[str] = typer.Argument(
        ...,
        metavar="SOURCES...",
        help='Files (.jsonl, .jsonl.gz, .jsonl.zst) with a "text" on each line, directories, or glob patterns in quotes.',
    ),
    output: Path = typer.Argument(..., help="Directory to write, new or empty."),
    tokenizer: str = typer.Option(
        ..., help="Code of a language, such as en; or path or name of a saved pipeline that splits texts."
    ),
    n_process: int = typer.Option(1, min=1, max=1024, help="Worker processes."),
    max_words: int = typer.Option(200, min=1, help="Longer sentences are cut into pieces of so many words."),
    plain_text: bool = typer.Option(False, "--plain-text", help="Read .txt files too: raw text, a text a line."),
) -> None:
    """Split raw text into sentences and words, a sentence a line: what `pretrain` reads. A second call does nothing."""
    from .raw_text import read_manifest, tokenize_sources

    with errors_as_messages():
        shards = tokenize_sources(sources, output, tokenizer, n_process, max_words, plain_text)
        found = read_manifest(output)
    words = f"{found['words']:,} words in {found['sentences']:,} sentences of {found['texts']:,} texts"
    print(f"{output}: {len(shards)} files, {words}")
    if found["split_tokens"]:
        print(f"- {found['split_tokens']:,} tokens with whitespace in them became several words")
