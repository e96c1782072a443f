"""Raw text as files of one sentence a line, split by spaCy in worker processes: what `pretraining` reads.

A directory of such files is whole or not there. Beside the files it has `manifest.json`, which says what they were made of:

sources     of each file its name, size and sha256, in order
tokenizer   as it was given; of a pipeline its name and version too
spacy       the version of spaCy
max_words   longer sentences were cut into pieces of so many words
shards      of each file written its name and sha256
texts, sentences, words, split_tokens (tokens with whitespace in them, written as several words)
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import CorpusError, ElmoError, Errors, detail_of
from ..pretraining.corpus import find_shards
from ..pretraining.text_files import FileStates, TextFile
from ..weights.files import read_json, sha256_of, write_atomically
from .models import require_new, whole_directory
from .sentence_splitting import Counted, RawText, Splitter, split_in_processes

MANIFEST_FILE = "manifest.json"

_WORDS_OF_A_SHARD = 1_000_000
_MOST_MANIFEST_BYTES = 2**26
_PLAIN = re.compile(r"\.txt(\.gz|\.zst)?$")


def tokenize_sources(
    sources: Sequence[str | Path],
    output_directory: Path,
    tokenizer: str,
    n_process: int = 1,
    max_words: int = 200,
    plain_text: bool = False,
) -> list[Path]:
    """Split raw text into sentences and words, and write `.txt.gz` files of one sentence a line.

    Words are spaCy's tokens but those of whitespace, as for the elmo pipe. A token with whitespace in it (Vietnamese has
    such) is written as several words, since whitespace separates words there; the manifest has their number.

    If the directory holds what a call with the same input has written, nothing is done. Of other input it is an error: a
    training run may be reading what is there.

    sources (Sequence): `.jsonl` files, plain or compressed, with a "text" on each line, or the words of a sentence as
        "tokens", which are taken as they are; directories of such files, or glob patterns.
    output_directory (Path): Directory to write, new or empty.
    tokenizer (str): Code of a language, whose tokenizer is used with a sentencizer; or name or path of a pipeline, of which
        what splits texts is used.
    n_process (int): Worker processes. What is written does not depend on their number.
    max_words (int): Longer sentences are cut into pieces of so many words.
    plain_text (bool): Whether `.txt` files are read too, as raw text with a text a line.
    RETURNS (list[Path]): The files, in order.
    RAISES (CorpusError): E200–E202, E240–E245 if a source cannot be read, E403 for a text that is too long for the pipeline,
        E420 for a `.txt` file without `plain_text`, E421 if the directory holds text of other input, E422 if the tokenizer
        fails, E423 if there is no sentence in the text.
    RAISES (PipelineError): E408, E413, E415 if there is no such pipeline. (ElmoError): E406 if the directory cannot be
        written, E430 if it is in use.
    """
    files = _raw_files(sources, output_directory, plain_text)
    splitter = Splitter(tokenizer, max_words)
    states = FileStates()
    about: dict[str, Any] = {
        "sources": [_describe(path, states) for path in files],
        **splitter.about(),
        "max_words": max_words,
    }
    if (output_directory / MANIFEST_FILE).is_file():
        return _reused(output_directory, about)
    require_new(output_directory)
    with whole_directory(output_directory) as fresh:
        texts = chain.from_iterable(_texts(path, states) for path in files)
        shards = _Shards(fresh)
        with closing(split_in_processes(splitter, texts, n_process)) as split:
            counted = shards.write(_watched(split))
        if not counted.words:
            raise CorpusError(Errors.E423.format(sources=[str(path) for path in files[:3]]))
        about |= {"shards": shards.written, **counted._asdict()}
        write_atomically(fresh / MANIFEST_FILE, (json.dumps(about, indent=2) + "\n").encode("utf-8"))
    return [output_directory / shard["name"] for shard in shards.written]


def read_manifest(directory: Path) -> dict[str, Any]:
    """RETURNS (dict): What the text in a directory was made of.

    RAISES (CorpusError): E421 if there is none that can be read.
    """
    path = directory / MANIFEST_FILE
    try:
        manifest = read_json(path, _MOST_MANIFEST_BYTES)
        if not isinstance(manifest, dict) or not isinstance(manifest.get("shards"), list):
            raise ValueError("it is no manifest")
    except (OSError, ValueError, RecursionError) as error:
        raise CorpusError(Errors.E421.format(directory=directory, detail=f"{path.name}: {detail_of(error)}")) from error
    return manifest


def _raw_files(sources: Sequence[str | Path], output: Path, plain_text: bool) -> list[Path]:
    def is_other(path: Path) -> bool:
        # What is found in a directory or by a pattern is of both kinds; what is named is meant.
        return not plain_text and _PLAIN.search(path.name) is not None and str(path) not in named

    named = {str(Path(source)) for source in sources}
    files = find_shards(sources, is_other)
    for path in files:
        if not plain_text and not TextFile(path).is_json:
            raise CorpusError(Errors.E420.format(path=path))
        if output.resolve() in path.resolve().parents:
            raise ElmoError(Errors.E430.format(path=output, problem="holds text that is to be read"))
    return files


def _describe(path: Path, states: FileStates) -> dict[str, Any]:
    return {"name": path.name, "sha256": states.checksum(path), "bytes": path.stat().st_size}


def _texts(path: Path, states: FileStates) -> Iterator[RawText]:
    """The texts of a file that has not changed since it was described."""
    states.check(path)
    file = TextFile(path)
    for piece in file.pieces():
        if not file.is_json:
            yield RawText(path, file.line, file.decode(piece), None)
        elif piece.strip():
            record = file.record(piece)
            tokens, text = record.get("tokens"), record.get("text")
            if isinstance(tokens, list):
                yield RawText(path, file.line, None, file.join(tokens).split())
            elif isinstance(text, str):
                yield RawText(path, file.line, file.join([text]), None)
            else:
                raise file.no_json('there is no string "text" either')
    states.check(path, file.line)


def _watched(split: Iterable[tuple[bytes, Counted]]) -> Iterator[tuple[bytes, Counted]]:
    from tqdm import tqdm

    with tqdm(unit=" words", unit_scale=True, desc="splitting text") as bar:
        for lines, counted in split:
            yield lines, counted
            bar.update(counted.words)


def _reused(directory: Path, about: dict[str, Any]) -> list[Path]:
    manifest = read_manifest(directory)
    checksums = [source.get("sha256") for source in manifest.get("sources", ())]
    changed = [name for name in about if name != "sources" and manifest.get(name) != about[name]]
    if checksums != [source["sha256"] for source in about["sources"]]:
        changed.insert(0, "sources")
    if changed:
        raise CorpusError(Errors.E421.format(directory=directory, detail=f"another {', '.join(changed)}"))
    shards = [directory / shard["name"] for shard in manifest["shards"]]
    for path, shard in zip(shards, manifest["shards"]):
        try:
            is_whole = sha256_of(path) == shard["sha256"]
        except OSError:
            is_whole = False
        if not is_whole:
            raise CorpusError(Errors.E421.format(directory=directory, detail=f"{path.name} is gone or was changed"))
    return shards


class _Shards:
    """Files of some million words each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.written: list[dict[str, str]] = []

    def write(self, split: Iterable[tuple[bytes, Counted]]) -> Counted:
        """Write sentences. What was counted of them comes back."""
        total, split = Counted(), iter(split)
        for lines, counted in split:
            if counted.words:
                path = self.directory / f"{len(self.written):05}.txt.gz"
                in_shard: list[Counted] = []
                write_atomically(path, self._pieces(lines, counted, split, in_shard))
                self.written.append({"name": path.name, "sha256": sha256_of(path)})
                total = total.plus(*in_shard)
            else:
                total = total.plus(counted)
        return total

    def _pieces(
        self, lines: bytes, counted: Counted, split: Iterator[tuple[bytes, Counted]], in_shard: list[Counted]
    ) -> Iterator[bytes]:
        packer = zlib.compressobj(wbits=31)
        words = 0
        while True:
            in_shard.append(counted)
            words += counted.words
            yield packer.compress(lines)
            if words >= _WORDS_OF_A_SHARD or (following := next(split, None)) is None:
                break
            lines, counted = following
        yield packer.flush()
