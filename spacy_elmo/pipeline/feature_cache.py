"""Layers of a frozen biLM, remembered across epochs and evaluation: from the second epoch on, they cost almost nothing.

What is remembered is a sequence of words, as the language model reads it, so that a sentence is found again in
whatever Doc it comes. In memory there is a budget; on disk there are records, if a directory is given.
"""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..layers.checks import require
from ..lm.locks import ForkSafeLock
from .feature_files import FORMAT, FeatureFiles, Floats, Record, pack, unpack

_require = partial(require, "the feature cache")

_ENTRY_BYTES = 450
"""What an entry takes in memory beside its numbers."""

_PATIENCE = 8
"""An entry makes room for another when, since its last use, so many budgets of others were wanted and not there."""

Sequences = Sequence[Sequence[str]]

# One for all caches, held while looking, storing, reading and writing, not while computing.
_LOCK = ForkSafeLock()


class FeatureCache:
    """Remember the layers of sequences of words.

    It is exact: float32 comes back bit by bit; with `half`, values are the rounded ones from the first time on, so
    that they do not depend on what is remembered. Arrays that it gives are the caller's own. It may be shared by
    threads, and by processes after a fork. Copies and pickles have its settings and start without what is in memory.

    max_bytes (int): Budget of the memory. What has not been used for long makes room; beyond that, what came first
        stays: of a corpus of twice the budget, read over and over, nothing would be found if the last one stayed.
    directory (Path | None): Where records are kept on disk as well, for later runs and for what the memory has no
        room for; several processes may share it. Default: nowhere.
    max_disk_bytes (int | None): Bound of the directory. Files that no run has used since this cache was made are
        deleted for room; then nothing more is written. Default: none.
    half (bool): Keep float16.
    RAISES (ConfigError): E300 if a setting cannot be.
    """

    def __init__(
        self,
        max_bytes: int = 2**30,
        directory: str | Path | None = None,
        *,
        max_disk_bytes: int | None = None,
        half: bool = False,
    ) -> None:
        _require("max_bytes", max_bytes, _is_count(max_bytes), "a whole number from 0 up")
        fits = max_disk_bytes is None or _is_count(max_disk_bytes)
        _require("max_disk_bytes", max_disk_bytes, fits, "a whole number from 0 up, or null for no bound")
        _require("half", half, isinstance(half, bool), "true or false")
        self.max_bytes = max_bytes
        self.directory = None if directory is None else Path(directory)
        self.max_disk_bytes = max_disk_bytes
        self.half = half
        self._memory = _Memory(max_bytes)
        self._files = None if self.directory is None else FeatureFiles(self.directory, max_disk_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (self.max_bytes, self.directory, self.max_disk_bytes, self.half)

    def __len__(self) -> int:
        return len(self._memory.entries)

    @property
    def n_bytes(self) -> int:
        """What the entries in memory take."""
        return self._memory.n_bytes

    def look_up(self, sequences: Sequences, weights: str, compute: Callable[[Sequences], Floats]) -> Floats:
        """Layers of sequences, computing those that are not there yet.

        sequences (Sequence[Sequence[str]]): Words of each sequence.
        weights (str): Changes when the biLM would give other numbers: its fingerprint, and what else they depend on.
        compute (Callable): From distinct sequences to their layers, one after another: float32,
            (words, layers, width), numpy.
        RETURNS (ndarray): float32, (words, layers, width), numpy, the sequences one after another.
        RAISES (PipelineError): E340 if the directory cannot be made or read.
        """
        keys = self._keys(sequences, weights)
        distinct = dict(zip(keys, sequences))
        found = self._recall(distinct)
        missing = {key: words for key, words in distinct.items() if key not in found}
        if missing or not found:
            layers = compute(list(missing.values()))
            if not missing:
                return layers
            ends = np.cumsum([len(words) for words in missing.values()])
            fresh = {key: pack(part, self.half) for key, part in zip(missing, np.split(layers, ends[:-1]))}
            self._remember(fresh)
            found.update(fresh)
        return _joined([found[key] for key in keys])

    def _keys(self, sequences: Sequences, weights: str) -> list[bytes]:
        settings = repr((FORMAT, sys.byteorder, self.half, weights)).encode("utf-8", "backslashreplace")
        start = hashlib.blake2b(settings + b"\xff", digest_size=32)
        keys = []
        for words in sequences:
            hasher = start.copy()
            # No UTF-8 has this byte, so no two sequences read the same.
            hasher.update(b"".join([word.encode("utf-8", "surrogatepass") + b"\xff" for word in words]))
            keys.append(hasher.digest())
        return keys

    def _recall(self, keys: Iterable[bytes]) -> dict[bytes, Record]:
        with _LOCK.held():
            known = {key: self._memory.get(key) for key in keys}
            found = {key: record for key, record in known.items() if record is not None}
            if self._files is not None and len(found) < len(known):
                read = self._files.read([key for key in known if key not in found])
                for key, record in read.items():
                    self._memory.put(key, record)
                found.update(read)
        return found

    def _remember(self, records: dict[bytes, Record]) -> None:
        with _LOCK.held():
            for key, record in records.items():
                self._memory.put(key, record)
            if self._files is not None:
                self._files.write(records)


class _Memory:
    """Entries in the order of their use, and when that was."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self.entries: OrderedDict[bytes, tuple[Record, int]] = OrderedDict()
        # The clock: how much was wanted that was not there.
        self._missed = 0

    def get(self, key: bytes) -> Record | None:
        entry = self.entries.get(key)
        if entry is None:
            return None
        self.entries[key] = (entry[0], self._missed)
        self.entries.move_to_end(key)
        return entry[0]

    def put(self, key: bytes, record: Record) -> None:
        """Take an entry in, if there is room or something old can go. Another thread may have brought it meanwhile."""
        size = _size(record)
        self._missed += size
        if key in self.entries or size > self.max_bytes:
            return
        while self.n_bytes + size > self.max_bytes and self.entries:
            oldest, (old, last_use) = next(iter(self.entries.items()))
            if self._missed - last_use <= _PATIENCE * self.max_bytes:
                return
            del self.entries[oldest]
            self.n_bytes -= _size(old)
        self.entries[key] = (record, self._missed)
        self.n_bytes += size


def _joined(records: Sequence[Record]) -> Floats:
    words = sum(len(record.values) for record in records)
    layers = np.empty((words, records[0].n_layers, records[0].width), dtype=np.float32)
    start = 0
    for record in records:
        end = start + len(record.values)
        unpack(record, layers[start:end])
        start = end
    return layers


def _size(record: Record) -> int:
    return record.values.nbytes + _ENTRY_BYTES


def _make(max_bytes: int, directory: Path | None, max_disk_bytes: int | None, half: bool) -> FeatureCache:
    return FeatureCache(max_bytes, directory, max_disk_bytes=max_disk_bytes, half=half)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
