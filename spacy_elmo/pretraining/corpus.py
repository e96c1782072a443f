"""Running text as a stream of sentences and of batches, in memory that does not grow with the corpus.

A corpus is text files (`.txt`, `.txt.gz`): one sentence a line, words separated by spaces, UTF-8.
"""

from __future__ import annotations

import gzip
import hashlib
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from glob import glob
from io import BufferedIOBase
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..errors import CorpusError, Errors
from ..weights.files import sha256_of

SUFFIXES = (".txt", ".txt.gz")

_LONGEST_LINE = 2**23
"""Bytes of a line that are held at a time; what is beyond is read as a further line."""


Sentence = list[str]

_Sentence = TypeVar("_Sentence", bound=Sized)


class Position(NamedTuple):
    """How far a training run has read: epochs done, buffers of this epoch done, batches of this buffer done."""

    epoch: int = 0
    buffer: int = 0
    batch: int = 0


@dataclass
class CorpusReport:
    """What was met while reading.

    sentences (int): Sentences, of `words` words together.
    empty_lines (int): Lines left out.
    cut_lines (int): Lines cut because they were longer than a sentence may be.
    """

    sentences: int = 0
    words: int = 0
    empty_lines: int = 0
    cut_lines: int = 0


@dataclass
class Corpus:
    """Shards of running text.

    shards (list[Path]): The files, in a fixed order.
    max_words (int): Longer lines are cut into sentences of this many words.
    buffer_words (int): Words that are shuffled and sorted by length together.
    """

    shards: list[Path]
    max_words: int = 200
    buffer_words: int = 400_000
    report: CorpusReport = field(default_factory=CorpusReport)

    @classmethod
    def find(cls, sources: Iterable[str | Path]) -> Corpus:
        """RETURNS (Corpus): Of the text files that `find_shards` finds; it raises what that raises."""
        return cls(find_shards(sources))

    def identity(self) -> dict[str, int | str]:
        """What must not change if a run is to go on where it was: every byte of every shard, and their order.

        All is read, which takes a small part of the time that counting the words takes. Names, places and dates of the
        files do not matter. A compressed file is hashed as it stands: compressed anew, it is another file.

        RETURNS (dict): "shards", their number, "bytes", of all together, "sha256", over sizes and contents in order.
        RAISES (CorpusError): E201 if a shard is gone or cannot be read.
        """
        digest, size = hashlib.sha256(), 0
        for shard in self.shards:
            try:
                size_here, digest_here = shard.stat().st_size, bytes.fromhex(sha256_of(shard))
            except OSError as error:
                raise CorpusError(Errors.E201.format(path=shard, line=1, detail=error)) from error
            size += size_here
            digest.update(size_here.to_bytes(8, "little") + digest_here)
        return {"shards": len(self.shards), "bytes": size, "sha256": digest.hexdigest()}

    def sentences(self, shards: Iterable[Path] | None = None) -> Iterator[Sentence]:
        """Read sentences one by one.

        shards (Iterable[Path] | None): The files to read, in order; all by default.
        YIELDS (list[str]): The words of a sentence, at least one.
        RAISES (CorpusError): E201 if a file cannot be read or is cut off, E202 if it is not UTF-8.
        """
        for shard in self.shards if shards is None else shards:
            for line in read_lines(shard):
                words = line.split()
                if not words:
                    self.report.empty_lines += 1
                    continue
                self.report.cut_lines += len(words) > self.max_words
                for start in range(0, len(words), self.max_words):
                    sentence = words[start : start + self.max_words]
                    self.report.sentences += 1
                    self.report.words += len(sentence)
                    yield sentence

    def batches(
        self, batch_words: int, seed: int, epochs: int, start: Position = Position()
    ) -> Iterator[tuple[Position, list[Sentence]]]:
        """Batches of sentences of like length, shuffled: the shards of an epoch, then the batches of each buffer.

        The order depends on the seed and the epoch only, so that a run can go on where it was.

        batch_words (int): Words of a batch; a batch holds at least one sentence.
        seed (int): Decides the order.
        epochs (int): Passes over the corpus.
        start (Position): Where to go on: the position that came with the last batch that was used.
        YIELDS (tuple[Position, list[list[str]]]): The position after the batch, and the batch.
        RAISES (CorpusError): E203 if there is no sentence in the corpus.
        """
        for epoch in range(start.epoch, epochs):
            shuffler = random.Random(f"{seed} {epoch}")
            shards = list(self.shards)
            shuffler.shuffle(shards)
            index = -1
            for index, buffer in enumerate(group_by_words(self.sentences(shards), self.buffer_words)):
                if (epoch, index) < (start.epoch, start.buffer):
                    continue
                batches = _shuffled_batches(buffer, batch_words, random.Random(f"{seed} {epoch} {index}"))
                done = start.batch if (epoch, index) == (start.epoch, start.buffer) else 0
                for number in range(done, len(batches)):
                    yield Position(epoch, index, number + 1), batches[number]
            if index < 0:
                raise CorpusError(Errors.E203.format(shards=[str(shard) for shard in self.shards[:3]]))


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a text file, plain or gzip.

    YIELDS (str): A line; only `\\n` ends a line. A line of very many bytes comes in pieces, cut at a space.
    RAISES (CorpusError): E201 if the file cannot be read or is cut off, E202 if it is not UTF-8.
    """
    number = 1
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else open(path, "rb") as file:
            for index, raw in enumerate(_bounded_lines(file)):
                yield raw.decode("utf-8-sig" if index == 0 else "utf-8")
                number += raw.endswith(b"\n")
    except UnicodeDecodeError as error:
        detail = f"byte {error.object[error.start]:#04x}"
        raise CorpusError(Errors.E202.format(path=path, line=number, detail=detail)) from error
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(Errors.E201.format(path=path, line=number, detail=error)) from error


def _bounded_lines(file: BufferedIOBase) -> Iterator[bytes]:
    rest = b""
    while read := file.readline(_LONGEST_LINE):
        raw, rest = rest + read, b""
        if len(read) == _LONGEST_LINE and not raw.endswith(b"\n"):
            cut = raw.rfind(b" ") + 1 or _before_last_character(raw)
            raw, rest = raw[:cut], raw[cut:]
        yield raw
    if rest:
        yield rest


def _before_last_character(raw: bytes) -> int:
    """A character of UTF-8 has at most four bytes, of which all but the first begin with the bits 10."""
    starts = (len(raw) - back for back in range(1, 5) if raw[-back] & 0xC0 != 0x80)
    return next(starts, len(raw))


def find_shards(sources: Iterable[str | Path], leave_out: Callable[[Path], bool] | None = None) -> list[Path]:
    """Find the text files of files, directories and glob patterns.

    sources (Iterable): Files, directories (their `.txt` and `.txt.gz` files) or glob patterns.
    leave_out (Callable | None): Says of a file whether it is no text, though a source leads to it.
    RETURNS (list[Path]): The files in the order of the sources, those of one source by name, each once.
    RAISES (CorpusError): E200 if a source leads to no file, E201 if a directory cannot be read.
    """
    shards: list[Path] = []
    for source in sources:
        try:
            found = [path for path in _find(source) if leave_out is None or not leave_out(path)]
        except OSError as error:
            raise CorpusError(Errors.E201.format(path=source, line=1, detail=error)) from error
        if not found:
            raise CorpusError(Errors.E200.format(source=source, suffixes=", ".join(SUFFIXES)))
        shards.extend(found)
    return list(dict.fromkeys(shards))


def text_checksum(sentences: Iterable[Sequence[str]]) -> str:
    """RETURNS (str): Half of the sha256 of sentences, in hexadecimal."""
    digest = hashlib.sha256()
    for words in sentences:
        digest.update((" ".join(words) + "\n").encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


def _find(source: str | Path) -> list[Path]:
    path = Path(source)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [p for p in path.iterdir() if p.name.endswith(SUFFIXES) and not p.name.startswith(".")]
    else:
        found = [Path(name) for name in glob(str(source), recursive=True)]
    return sorted(p for p in found if p.is_file())


def group_by_words(sentences: Iterable[_Sentence], words: int) -> Iterator[list[_Sentence]]:
    """Group sentences in their order.

    sentences (Iterable): The sentences.
    words (int): A group ends with the sentence that brings it to so many words.
    YIELDS (list): The sentences of a group, at least one.
    """
    group: list[_Sentence] = []
    held = 0
    for sentence in sentences:
        group.append(sentence)
        held += len(sentence)
        if held >= words:
            yield group
            group, held = [], 0
    if group:
        yield group


def _shuffled_batches(buffer: list[Sentence], batch_words: int, shuffler: random.Random) -> list[list[Sentence]]:
    shuffler.shuffle(buffer)
    buffer.sort(key=len)
    batches: list[list[Sentence]] = [[]]
    held = 0
    for sentence in buffer:
        if batches[-1] and held + len(sentence) > batch_words:
            batches.append([])
            held = 0
        batches[-1].append(sentence)
        held += len(sentence)
    shuffler.shuffle(batches)
    return batches
