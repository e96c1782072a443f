"""Files of texts and vectors, HDF5 or npz, written piece by piece in memory that does not grow with them.

Both formats hold the same arrays; row i of a `…starts` array is where text i starts, its last row the end of all:

    text           uint8, (bytes,): all texts in UTF-8, one after another
    text_starts    int64, (texts + 1,): where in `text` each text starts
    row_starts     int64, (texts + 1,): where in `offsets` and `vectors` the tokens of each text start
    offsets        int64, (tokens, 2): start and end of each token in its text, in characters
    vectors        float32 or float16, (tokens, width) or (tokens, layers, width)
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from ..errors import ElmoError, Errors

SUFFIXES = (".h5", ".hdf5", ".npz")


class Column(Protocol):
    """An array on disk that grows by rows."""

    def append(self, rows: np.ndarray) -> None:
        """Add rows at the end."""


class VectorWriter:
    """Add texts to a file of vectors.

    columns (dict[str, Column]): The arrays of the file, see above.
    """

    def __init__(self, columns: dict[str, Column]) -> None:
        self._columns = columns
        self.texts, self.tokens, self._bytes = 0, 0, 0
        self._append("text_starts", np.zeros(1, dtype=np.int64))
        self._append("row_starts", np.zeros(1, dtype=np.int64))

    def write(self, text: str, offsets: np.ndarray, vectors: np.ndarray) -> None:
        """Add a text.

        text (str): The text.
        offsets (ndarray): int64, (tokens, 2).
        vectors (ndarray): (tokens, …), converted to the type of the file.
        """
        encoded = np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
        self.texts += 1
        self.tokens += len(offsets)
        self._bytes += len(encoded)
        self._append("text", encoded)
        self._append("text_starts", np.array([self._bytes]))
        self._append("row_starts", np.array([self.tokens]))
        self._append("offsets", offsets)
        self._append("vectors", vectors)

    def _append(self, name: str, rows: np.ndarray) -> None:
        self._columns[name].append(rows)


@contextmanager
def vector_writer(path: Path, row_shape: tuple[int, ...], half: bool = False) -> Iterator[VectorWriter]:
    """Write a file of vectors beside its place and move it there when it is whole.

    path (Path): The file; its suffix says the format.
    row_shape (tuple): Shape of the vectors of one token.
    half (bool): Store float16 instead of float32.
    YIELDS (VectorWriter): Takes the texts.
    RAISES (ElmoError): E404 for another suffix, E405 without h5py, E406 if the file cannot be written; what was there
        before is still there.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ElmoError(Errors.E404.format(path=path, suffix=path.suffix, known=", ".join(SUFFIXES)))
    open_columns = _npz_columns if path.suffix.lower() == ".npz" else _hdf5_columns
    layout: dict[str, tuple[Any, tuple[int, ...]]] = {
        "text": (np.uint8, ()),
        "text_starts": (np.int64, ()),
        "row_starts": (np.int64, ()),
        "offsets": (np.int64, (2,)),
        "vectors": (np.float16 if half else np.float32, row_shape),
    }
    fresh = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_columns(fresh, layout) as columns:
            yield VectorWriter(columns)
        with open(fresh, "rb") as file:
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except ImportError as error:
        raise ElmoError(Errors.E405.format(path=path)) from error
    except OSError as error:
        raise ElmoError(Errors.E406.format(path=path, detail=error.strerror or error)) from error
    finally:
        with suppress(OSError):
            fresh.unlink()


class _DatasetColumn:
    """A resizable dataset. Rows are gathered: HDF5 is slow with few at a time."""

    GATHERED = 1 << 22

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._gathered: list[np.ndarray] = []
        self._size = 0

    def append(self, rows: np.ndarray) -> None:
        self._gathered.append(rows.astype(self._dataset.dtype))
        self._size += self._gathered[-1].nbytes
        if self._size >= self.GATHERED:
            self.flush()

    def flush(self) -> None:
        if self._gathered:
            rows = np.concatenate(self._gathered)
            first = self._dataset.shape[0]
            self._dataset.resize(first + len(rows), axis=0)
            self._dataset[first:] = rows
            self._gathered, self._size = [], 0


@contextmanager
def _hdf5_columns(path: Path, layout: dict[str, tuple[Any, tuple[int, ...]]]) -> Iterator[dict[str, Column]]:
    import h5py

    with h5py.File(path, "w") as file:
        columns = {}
        for name, (dtype, row) in layout.items():
            # Chunks of about 256 KiB.
            chunk = max(1, (1 << 18) // (np.dtype(dtype).itemsize * int(np.prod(row, dtype=np.int64))))
            dataset = file.create_dataset(name, (0, *row), dtype, maxshape=(None, *row), chunks=(chunk, *row))
            columns[name] = _DatasetColumn(dataset)
        yield {**columns}
        for column in columns.values():
            column.flush()


class _RawColumn:
    """Rows as they lie in memory, in a file without a header: their number is not known yet."""

    def __init__(self, file: IO[bytes], dtype: Any) -> None:
        self._file = file
        self._dtype = dtype
        self.rows = 0

    def append(self, rows: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).tobytes())
        self.rows += len(rows)

    def copy_to(self, target: IO[bytes], row: tuple[int, ...]) -> None:
        header = {"descr": np.dtype(self._dtype).str, "fortran_order": False, "shape": (self.rows, *row)}
        np.lib.format.write_array_header_1_0(target, header)
        self._file.seek(0)
        shutil.copyfileobj(self._file, target, 1 << 20)


@contextmanager
def _npz_columns(path: Path, layout: dict[str, tuple[Any, tuple[int, ...]]]) -> Iterator[dict[str, Column]]:
    """A zip file can grow by one member at a time only, so that columns grow in files of their own first."""
    with ExitStack() as stack:
        columns = {
            name: _RawColumn(stack.enter_context(tempfile.TemporaryFile(dir=path.parent)), dtype)
            for name, (dtype, _) in layout.items()
        }
        yield {**columns}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, column in columns.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    column.copy_to(member, layout[name][1])
