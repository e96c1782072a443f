"""Files of texts and vectors, HDF5 or npz, written piece by piece in memory that does not grow with them.

Both formats hold the same arrays; row i of a `…starts` array is where text i starts, its last row the end of all:

    text           uint8, (bytes,): all texts in UTF-8, one after another
    text_starts    int64, (texts + 1,): where in `text` each text starts
    row_starts     int64, (texts + 1,): where in `offsets` and `vectors` the tokens of each text start
    offsets        int64, (tokens, 2): start and end of each token in its text, in characters
    vectors        float32 or float16, (tokens, width) or (tokens, layers, width)
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from ..errors import ElmoError, Errors
from .hdf5_columns import Layout, hdf5_columns
from .output_files import refuse_directory, whole_file

HDF5_SUFFIXES = (".h5", ".hdf5")
SUFFIXES = (*HDF5_SUFFIXES, ".npz")


class Column(Protocol):
    """An array on disk that grows by rows."""

    def append(self, rows: np.ndarray) -> None:
        """Add rows at the end."""


class VectorWriter:
    """Add texts to a file of vectors.

    columns (Mapping[str, Column]): The arrays of the file, see above.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
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


def check_output(path: Path) -> None:
    """Say before the work, not after it, that a file of vectors cannot be written.

    path (Path): The file.
    RAISES (ElmoError): E404 for a suffix that names no format, E405 without h5py, E406 if the path is a directory.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ElmoError(Errors.E404.format(path=path, suffix=path.suffix, known=", ".join(SUFFIXES)))
    if suffix in HDF5_SUFFIXES:
        try:
            import h5py  # noqa: F401
        except ImportError as error:
            raise ElmoError(Errors.E405.format(path=path)) from error
    refuse_directory(path)


@contextmanager
def vector_writer(path: Path, row_shape: tuple[int, ...], half: bool = False) -> Iterator[VectorWriter]:
    """Write a file of vectors beside its place and move it there when it is whole.

    path (Path): The file; its suffix says the format.
    row_shape (tuple): Shape of the vectors of one token.
    half (bool): Store float16 instead of float32.
    YIELDS (VectorWriter): Takes the texts.
    RAISES (ElmoError): E404–E406 as in `check_output`, and E406 if the file cannot be written; what was there
        before is still there.
    """
    check_output(path)
    open_columns = hdf5_columns if path.suffix.lower() in HDF5_SUFFIXES else _npz_columns
    layout: Layout = {
        "text": (np.uint8, ()),
        "text_starts": (np.int64, ()),
        "row_starts": (np.int64, ()),
        "offsets": (np.int64, (2,)),
        "vectors": (np.float16 if half else np.float32, row_shape),
    }
    with whole_file(path) as fresh, open_columns(fresh, layout) as columns:
        yield VectorWriter(columns)


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
def _npz_columns(path: Path, layout: Layout) -> Iterator[Mapping[str, Column]]:
    """A zip file can grow by one member at a time only, so that columns grow in files of their own first."""
    with ExitStack() as stack:
        columns = {
            name: _RawColumn(stack.enter_context(tempfile.TemporaryFile(dir=path.parent)), dtype)
            for name, (dtype, _) in layout.items()
        }
        yield columns
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, column in columns.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    column.copy_to(member, layout[name][1])
