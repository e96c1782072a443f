"""Arrays in an HDF5 file that grow by rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..pretraining.interrupts import interrupts_deferred
from ..weights.hdf5_target import Hdf5Target

Layout = Mapping[str, tuple[Any, tuple[int, ...]]]
"""Name of each array: its type, and the shape of a row."""


class DatasetColumn:
    """A resizable dataset. Rows are gathered: HDF5 is slow with few at a time.

    dataset (h5py.Dataset): The dataset.
    target (Hdf5Target): The file that it is in.
    """

    GATHERED = 1 << 22

    def __init__(self, dataset: Any, target: Hdf5Target) -> None:
        self._dataset = dataset
        self._target = target
        self._gathered: list[np.ndarray] = []
        self._size = 0

    def append(self, rows: np.ndarray) -> None:
        """Add rows at the end."""
        self._gathered.append(rows.astype(self._dataset.dtype))
        self._size += self._gathered[-1].nbytes
        if self._size >= self.GATHERED:
            self.flush()

    def flush(self) -> None:
        """Hand what is gathered to HDF5.

        RAISES (OSError): If it cannot be written.
        """
        if self._gathered:
            rows = np.concatenate(self._gathered)
            first = self._dataset.shape[0]
            # An interrupt within HDF5 would be a failure to write.
            with interrupts_deferred():
                self._dataset.resize(first + len(rows), axis=0)
                self._dataset[first:] = rows
            self._target.check()
            self._gathered, self._size = [], 0


@contextmanager
def hdf5_columns(path: Path, layout: Layout) -> Iterator[Mapping[str, DatasetColumn]]:
    """Write an HDF5 file of growing datasets.

    path (Path): The file.
    layout (Layout): The datasets.
    YIELDS (Mapping[str, DatasetColumn]): The datasets, empty.
    RAISES (OSError): If the file cannot be written.
    """
    import h5py

    with Hdf5Target(path) as target:
        with ExitStack() as stack:
            with interrupts_deferred():
                file = h5py.File(target, "w")
                stack.callback(_close, file)
            columns = {name: _column(file, target, name, *kind) for name, kind in layout.items()}
            yield columns
            for column in columns.values():
                column.flush()
        target.check()


def _close(file: Any) -> None:
    with interrupts_deferred():
        file.close()


def _column(file: Any, target: Hdf5Target, name: str, dtype: Any, row: tuple[int, ...]) -> DatasetColumn:
    # Chunks of about 256 KiB.
    chunk = max(1, (1 << 18) // (np.dtype(dtype).itemsize * int(np.prod(row, dtype=np.int64))))
    dataset = file.create_dataset(name, (0, *row), dtype, maxshape=(None, *row), chunks=(chunk, *row))
    return DatasetColumn(dataset, target)
