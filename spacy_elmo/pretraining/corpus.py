"""Running text as a stream of sentences, in memory that does not grow with the corpus.

A corpus is text files as `text_files` reads them, one sentence a line.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import BinaryIO

from ..errors import CorpusError, Errors, detail_of
from ..lm.config import MAX_CHARACTERS
from ..weights.files import write_atomically
from .text_files import SUFFIXES, FileStates, TextFile

BLOCK_LINES = 100
"""Lines that stay together where a corpus is read in parts."""

_PIECE = 2**20

Sentence = list[str]


@dataclass
class CorpusReport:
    """What was met while reading.

    sentences (int): Sentences, of `words` words together.
    empty_lines (int): Lines left out because there is no word in them.
    nul_lines (int): Lines left out because there is a NUL byte in them, as in a file that a full disk or a crash cut off.
    cut_lines (int): Lines cut because they were longer than a sentence may be.
    longest_line_words (int): Words of the longest line.
    longest_line_bytes (int): Bytes of the longest line, its end included.
    """

    sentences: int = 0
    words: int = 0
    empty_lines: int = 0
    nul_lines: int = 0
    cut_lines: int = 0
    longest_line_words: int = 0
    longest_line_bytes: int = 0


@dataclass
class Corpus:
    """Shards of running text. From when it is first read to the last reading, the shards must stay as they are.

    shards (list[Path]): The files, in a fixed order.
    max_words (int): Longer lines are cut into sentences of this many words.
    """

    shards: list[Path]
    max_words: int = 200
    report: CorpusReport = field(default_factory=CorpusReport)
    _states: FileStates = field(default_factory=FileStates, repr=False, compare=False)

    @classmethod
    def find(cls, sources: Iterable[str | Path]) -> Corpus:
        """RETURNS (Corpus): Of the text files that `find_shards` finds; it raises what that raises."""
        return cls(find_shards(sources))

    def identity(self) -> dict[str, int | str]:
        """What must not change if a run is to go on where it was: every byte of every shard, and their order.

        All is read, which takes a small part of the time that counting the words takes. Names, places and dates of the
        files do not matter. A compressed file is hashed as it stands: compressed anew, it is another file.

        RETURNS (dict): "shards", their number, "bytes", of all together, "sha256", over sizes and contents in order.
        RAISES (CorpusError): E201 if a shard is gone or cannot be read, E245 if it is not what it was.
        """
        digest, size = hashlib.sha256(), 0
        for shard in self.shards:
            digest_here = bytes.fromhex(self._states.checksum(shard))
            try:
                size_here = shard.stat().st_size
            except OSError as error:
                raise CorpusError(Errors.E201.format(path=shard, line=1, detail=error)) from error
            size += size_here
            digest.update(size_here.to_bytes(8, "little") + digest_here)
        return {"shards": len(self.shards), "bytes": size, "sha256": digest.hexdigest()}

    def sentences(self, shards: Iterable[Path] | None = None, part: int = 0, parts: int = 1) -> Iterator[Sentence]:
        """Read sentences one by one.

        A part is every so-manieth block of 100 lines, counted over all the shards in their order: parts have no line in
        common, together they are everything, and what is in one depends on nothing but this order, `part` and `parts`.
        Lines of other parts are passed over as they stand.

        shards (Iterable[Path] | None): The files to read, in order; all by default.
        part (int): Which part to read, from 0.
        parts (int): How many parts there are.
        YIELDS (list[str]): The words of a sentence, at least one.
        RAISES (CorpusError): E201 if a file cannot be read, is cut off or gone, E202 if it is not UTF-8, E240–E243 as
            `text_files` says, E245 if it is another than at first.
        """
        shards = list(self.shards if shards is None else shards)
        for shard in shards:  # those that are read last must stay as they are from now on too
            self._states.check(shard)
        before = 0
        for shard in shards:
            self._states.check(shard)
            file = TextFile(shard)
            for piece in file.pieces():
                line = before + file.line - 1
                if not line % BLOCK_LINES:
                    self._states.check(shard, file.line)
                if parts == 1 or line // BLOCK_LINES % parts == part:
                    yield from self._sentences_of(file, piece)
            self._states.check(shard, file.line)
            before += file.line

    def _sentences_of(self, file: TextFile, piece: bytes) -> list[Sentence]:
        report = self.report
        text = file.text(piece)
        if "\0" in text:
            report.nul_lines += 1
            return []
        words = text.split()
        earlier = file.line_words if file.continues else 0
        file.line_words = earlier + len(words)
        if file.line_words > report.longest_line_words:
            report.longest_line_words = file.line_words
        if file.line_bytes > report.longest_line_bytes:
            report.longest_line_bytes = file.line_bytes
        if not words:
            report.empty_lines += not file.continues
            return []
        if len(text) > MAX_CHARACTERS:
            # No biLM sees more of a word, and words without end would fill the memory.
            words = [word[:MAX_CHARACTERS] for word in words]
        report.cut_lines += earlier <= self.max_words < file.line_words
        report.words += len(words)
        if len(words) <= self.max_words:
            report.sentences += 1
            return [words]
        cut = [words[start : start + self.max_words] for start in range(0, len(words), self.max_words)]
        report.sentences += len(cut)
        return cut


def find_shards(sources: Iterable[str | Path], leave_out: Callable[[Path], bool] | None = None) -> list[Path]:
    """Find the text files of files, directories and glob patterns.

    sources (Iterable): Files, directories (their files with the suffixes of `text_files`) or glob patterns.
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


def spool(stream: BinaryIO, path: Path) -> None:
    """Keep text that comes only once, such as standard input, in a file that can be read again.

    stream (BinaryIO): UTF-8, one sentence a line.
    path (Path): A `.txt.gz` file to write; it is there when the stream has ended, and not at all if that fails.
    RAISES (CorpusError): E246 if the stream cannot be read or the file not written.
    """
    try:
        write_atomically(path, _packed(stream))
    except OSError as error:
        raise CorpusError(Errors.E246.format(path=path, detail=detail_of(error))) from error


def _packed(stream: BinaryIO) -> Iterator[bytes]:
    # The fastest level: text that waits for disks and other processes should not wait for this one.
    packer = zlib.compressobj(1, wbits=31)
    while piece := stream.read(_PIECE):
        yield packer.compress(piece)
    yield packer.flush()


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
