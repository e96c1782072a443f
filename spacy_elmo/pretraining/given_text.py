"""The text that a command names: found, kept where it comes only once, split where it is raw."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ..errors import ConfigError, CorpusError, Errors
from .corpus import Corpus, Sentence, find_shards, spool
from .distributed import Workers
from .run_directory import HELD_OUT, TEXT, RunLock, is_file_of_run, make_run_directory, require_room

Split = Callable[[list[Path], Path], list[Path]]
"""From files and a directory to write to files that can be read as they are: those, and what raw text among them became."""

STANDARD_INPUT = "-"

_INPUT_FILE = "standard-input.txt.gz"
_NO_DOMAIN = "other"
# A name of a file may have an equals sign, too.
_DOMAIN = re.compile(r"[^/\\*?\[\]=]*=")


def find_text(
    sources: Sequence[str],
    held_out: Sequence[str],
    directory: Path,
    resume: bool,
    workers: Workers,
    split: Split | None,
) -> tuple[list[Path], dict[str, list[Sentence]]]:
    """Find the text to train on and read the held-out text.

    A directory or a pattern may lead to what the run itself wrote before, which is left out.

    sources (Sequence[str]): Files, directories, glob patterns, or "-" for standard input, which is read once.
    held_out (Sequence[str]): The same, or after "DOMAIN=".
    directory (Path): That of the run, where text is kept.
    resume (bool): Whether a run that is there may go on.
    workers (Workers): The processes of the run.
    split (Callable | None): Splits raw text.
    RETURNS (tuple[list[Path], dict[str, list]]): The files to train on, and the held-out sentences by domain. Long lines of
        these are cut as by default, whatever cuts those of the corpus: perplexities of all runs compare.
    RAISES (ConfigError): E411 if held-out text is named wrongly. (CorpusError): As `corpus.find_shards`, `corpus.spool` and
        what splits do; E203 if there is no held-out sentence, E288 if there is no standard input.
    RAISES (TrainingError): E212, E215, E218, E219 as `beginning.begin` does, where something is to be kept.
    """
    by_domain = _by_domain(held_out)
    keeps = STANDARD_INPUT in sources or split is not None
    lock = RunLock(directory)
    shards: list[Path] = []
    of_domains: dict[str, list[Path]] = {}
    if workers.is_first:
        try:
            if keeps:
                make_run_directory(directory, [])
                lock.acquire()
                require_room(directory, resume)
            shards = _shards(sources, directory, resume)
            of_domains = {domain: _shards(named, directory, resume) for domain, named in by_domain.items()}
            if split is not None:
                shards = split(shards, directory / TEXT / "split")
                of_domains = {
                    domain: split(files, directory / HELD_OUT / _digest(domain, by_domain[domain]))
                    for domain, files in of_domains.items()
                }
        finally:
            lock.release()
    names = [[str(path) for path in paths] for paths in (shards, *of_domains.values())]
    shards, *of_each = [[Path(name) for name in group] for group in workers.of_first(names, patiently=True)]
    found = {domain: list(Corpus(files).sentences()) for domain, files in zip(by_domain, of_each)}
    for domain, sentences in found.items():
        if not sentences:
            raise CorpusError(Errors.E203.format(shards=by_domain[domain]))
    return shards, found


def _by_domain(held_out: Sequence[str]) -> dict[str, list[str]]:
    by_domain: dict[str, list[str]] = {}
    for given in held_out:
        named = None if os.path.isfile(given) else _DOMAIN.match(given)
        domain, source = (_NO_DOMAIN, given) if named is None else (given[: named.end() - 1], given[named.end() :])
        if not domain.strip() or not source.strip() or source == STANDARD_INPUT:
            expected = "a file, directory or pattern, or one after the name of a domain: news=valid.txt"
            raise ConfigError(Errors.E411.format(name="held-out", value=given, expected=expected))
        by_domain.setdefault(domain, []).append(source)
    return by_domain


def _shards(sources: Sequence[str], directory: Path, resume: bool) -> list[Path]:
    kept = directory / TEXT / _INPUT_FILE
    found: list[Path] = []
    for source in sources:
        if source == STANDARD_INPUT:
            if not (resume and kept.is_file()):
                _keep_standard_input(kept)
            found.append(kept)
        else:
            found += find_shards([source], partial(is_file_of_run, directory=directory))
    return list(dict.fromkeys(found))


def _keep_standard_input(path: Path) -> None:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise CorpusError(Errors.E288)
    spool(stream, path)


def _digest(domain: str, sources: Sequence[str]) -> str:
    """Other held-out text may come when a run goes on."""
    return hashlib.sha256("\0".join([domain, *sources]).encode("utf-8", "surrogateescape")).hexdigest()[:16]
