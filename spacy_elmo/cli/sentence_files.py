"""HDF5 files with a dataset for each line, as `allennlp elmo` and bilm-tf's `dump_bilm_embeddings` wrote them.

    "0", "1", …            float32 or float16, by the number of the line: (layers, tokens, width) or (tokens, width)
    "sentence_to_index"    AllenNLP only: (1,), a JSON object from each line to its number

Software that reads these counts words by the spaces of the line. The order of the datasets in the file is that of their
names as text: "0", "1", "10", …
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ElmoError, Errors
from ..pretraining.interrupts import interrupts_deferred
from ..weights.hdf5_target import Hdf5Target
from .output_files import whole_file
from .vector_files import HDF5_SUFFIXES, check_output


class SentenceWriter:
    """Add lines to a file.

    file (h5py.File): The file.
    target (Hdf5Target): What it is written to.
    half (bool): Store float16 instead of float32.
    with_index (bool): Keep the lines themselves, too.
    """

    def __init__(self, file: Any, target: Hdf5Target, half: bool, with_index: bool) -> None:
        self._file = file
        self._target = target
        self._dtype = np.float16 if half else np.float32
        self._numbers: dict[str, str] | None = {} if with_index else None
        self.texts, self.tokens = 0, 0

    def write(self, text: str, offsets: np.ndarray, vectors: np.ndarray) -> None:
        """Add a line.

        text (str): The line.
        offsets (ndarray): int64, (tokens, 2); not kept.
        vectors (ndarray): (tokens, width) or (tokens, layers, width).
        RAISES (OSError): If it cannot be written.
        """
        key = str(self.texts)
        by_layer = vectors.swapaxes(0, 1) if vectors.ndim == 3 else vectors
        with interrupts_deferred():
            self._file.create_dataset(key, data=np.ascontiguousarray(by_layer, dtype=self._dtype))
        self._target.check()
        if self._numbers is not None:
            self._numbers[text] = key
        self.texts += 1
        self.tokens += len(offsets)

    def finish(self) -> None:
        """Add what comes after all lines."""
        import h5py

        if self._numbers is not None:
            with interrupts_deferred():
                dataset = self._file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype())
                dataset[0] = json.dumps(self._numbers)


def check_sentence_output(path: Path) -> None:
    """Say before the work, not after it, that such a file cannot be written.

    path (Path): The file.
    RAISES (ElmoError): E404 if its suffix is not that of an HDF5 file, E405, E406 as `vector_files.check_output`.
    """
    if path.suffix.lower() not in HDF5_SUFFIXES:
        raise ElmoError(Errors.E404.format(path=path, suffix=path.suffix, known=", ".join(HDF5_SUFFIXES)))
    check_output(path)


@contextmanager
def sentence_writer(path: Path, half: bool = False, with_index: bool = False) -> Iterator[SentenceWriter]:
    """Write a file beside its place and move it there when it is whole.

    path (Path): The file.
    half (bool): Store float16 instead of float32.
    with_index (bool): Whether to write "sentence_to_index"; takes memory for all lines.
    YIELDS (SentenceWriter): Takes the lines.
    RAISES (ElmoError): E404–E406 as in `check_sentence_output`, and E406 if the file cannot be written; what was there before
        is still there.
    """
    import h5py

    check_sentence_output(path)
    with whole_file(path) as fresh, Hdf5Target(fresh) as target:
        with interrupts_deferred():
            file = h5py.File(target, "w")
        try:
            writer = SentenceWriter(file, target, half, with_index)
            yield writer
            writer.finish()
        finally:
            with interrupts_deferred():
                file.close()
        target.check()
