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
        fails, E423 if there is no sentence in the text, E424, E470 if worker processes die or cannot be started.
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
            shards.write(_watched(split))
        if not shards.counted.words:
            raise CorpusError(Errors.E423.format(sources=[str(path) for path in files[:3]]))
        about |= {"shards": shards.written, **shards.counted._asdict()}
        write_atomically(fresh / MANIFEST_FILE, (json.dumps(about, indent=2) + "\n").encode("utf-8"))
    return [output_directory / shard["name"] for shard in shards.written]


def read_manifest(directory: Path) -> dict[str, Any]:
    """RETURNS (dict): What the text in a directory was made of.

    RAISES (CorpusError): E421 if there is none that can be read.
    """
    path = directory / MANIFEST_FILE
    try:
        manifest: dict[str, Any] = read_json(path, _MOST_MANIFEST_BYTES)
        if not _is_manifest(manifest):
            raise ValueError("it is no manifest of split text")
    except (OSError, ValueError, RecursionError) as error:
        raise CorpusError(Errors.E421.format(directory=directory, detail=f"{path.name}: {detail_of(error)}")) from error
    return manifest


def _is_manifest(value: Any) -> bool:
    """Whether all is there that is read of it: other programs write files of that name, too."""
    return (
        isinstance(value, dict)
        and _are_records(value.get("sources"), "sha256")
        and _are_records(value.get("shards"), "name", "sha256")
        and all(isinstance(value.get(name), int) for name in Counted._fields)
    )


def _are_records(value: Any, *names: str) -> bool:
    return isinstance(value, list) and all(
        isinstance(record, dict) and all(isinstance(record.get(name), str) for name in names) for record in value
    )


def _raw_files(sources: Sequence[str | Path], output: Path, plain_text: bool) -> list[Path]:
    files = list(dict.fromkeys(path for source in sources for path in _files_of(source, plain_text)))
    place = output.resolve()
    if any(place in path.resolve().parents for path in files):
        raise ElmoError(Errors.E430.format(path=output, problem="holds text that is to be read"))
    return files


def _files_of(source: str | Path, plain_text: bool) -> list[Path]:
    found = find_shards([source])
    if plain_text:
        return found
    # Files of both kinds may stand side by side. Where there is nothing but plain text, that is what was meant.
    raw = [path for path in found if not _PLAIN.search(path.name)] or found
    for path in raw:
        if not TextFile(path).is_json:
            raise CorpusError(Errors.E420.format(path=path))
    return raw


def _describe(path: Path, states: FileStates) -> dict[str, Any]:
    return {"name": path.name, "sha256": states.checksum(path), "bytes": path.stat().st_size}


def _texts(path: Path, states: FileStates) -> Iterator[RawText]:
    """The texts of a file that has not changed since it was described."""
    states.check(path)
    file = TextFile(path)
    for piece in file.pieces():
        if not file.is_json:
            yield RawText(path, file.line, file.decode(piece))
        elif piece.strip():
            record = file.record(piece)
            tokens, text = record.get("tokens"), record.get("text")
            if isinstance(tokens, list):
                file.join(tokens)  # only strings that can be written can be joined
                yield RawText(path, file.line, tokens)
            elif isinstance(text, str):
                yield RawText(path, file.line, file.join([text]))
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
    checksums = [source["sha256"] for source in manifest["sources"]]
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
    """Files of some million words each.

    directory (Path): Where they are written.
    written (list[dict]): Name and sha256 of each.
    counted (Counted): What was counted of all that was taken so far.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.written: list[dict[str, str]] = []
        self.counted = Counted()

    def write(self, split: Iterator[tuple[bytes, Counted]]) -> None:
        """Write sentences, those of some texts at a time."""
        for lines, counted in split:
            self.counted = self.counted.plus(counted)
            if lines:  # no file is begun without words to stand in it
                path = self.directory / f"{len(self.written):05}.txt.gz"
                write_atomically(path, self._packed(lines, counted.words, split))
                self.written.append({"name": path.name, "sha256": sha256_of(path)})

    def _packed(self, lines: bytes, words: int, split: Iterator[tuple[bytes, Counted]]) -> Iterator[bytes]:
        """A file that begins with some lines and goes on with what comes next, until it has words enough."""
        packer = zlib.compressobj(wbits=31)
        yield packer.compress(lines)
        while words < _WORDS_OF_A_SHARD and (following := next(split, None)) is not None:
            lines, counted = following
            self.counted = self.counted.plus(counted)
            words += counted.words
            yield packer.compress(lines)
        yield packer.flush()
