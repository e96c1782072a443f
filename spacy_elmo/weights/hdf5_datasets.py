"""The plain datasets of floats in an hdf5 file, and nothing else of what such files can hold: hdf5 follows links to any file,
allocates what a file declares, and inflates what is compressed to its end."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..errors import Errors, WeightsError, detail_of
from .bilm_tensors import StoredTensor

# bilm-tf's dump leaves this level out of the names of a model of one layer.
_LEVEL_OF_LAYERS = "MultiRNNCell/Cell0/"

# What h5py's options compression="gzip", shuffle and fletcher32 make of a chunk; the latter adds four bytes.
_DEFLATE, _SHUFFLE, _FLETCHER32 = 1, 2, 3
_SUM_BYTES = 4
# A chunk of a small dataset may be larger than the dataset.
_SMALL = 2**20


class HDF5File:
    """The datasets in an open hdf5 file, by the names that bilm-tf's dump gives them.

    path (Path): Where it is. file (h5py.File): The file.
    """

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self.size = path, path.stat().st_size
        self._file = file

    def names(self) -> list[str]:
        """RETURNS (list[str]): The names of all datasets.

        RAISES (WeightsError): E127 if the file is damaged.
        """
        import h5py

        names: list[str] = []

        def collect(name: str, found: Any) -> None:
            if isinstance(found, h5py.Dataset):
                names.append(name.replace("/RNN/LSTMCell/", f"/RNN/{_LEVEL_OF_LAYERS}LSTMCell/"))

        with _damage_named(self.path):
            self._file.visititems(collect)
        return names

    def find(self, name: str) -> StoredTensor | None:
        """RETURNS (StoredTensor | None): The dataset of that name, None if there is none.

        RAISES (WeightsError): E127 if the file is damaged, E130 if the dataset is not safe to read.
        """
        with _damage_named(self.path):
            found = self._walk(name)
            return self._walk(name.replace(_LEVEL_OF_LAYERS, "")) if found is None else found

    def _walk(self, name: str) -> StoredTensor | None:
        """Link by link: one may lead to any file that the user can read."""
        import h5py

        found = self._file
        for part in name.split("/"):
            link = found.get(part, getlink=True) if isinstance(found, h5py.Group) else None
            if link is None:
                return None
            if not isinstance(link, h5py.HardLink):
                raise WeightsError(Errors.E130.format(path=self.path, name=name, found="a link to elsewhere"))
            found = found[part]
        kind = _unreadable_kind(found)
        if kind is not None:
            raise WeightsError(Errors.E130.format(path=self.path, name=name, found=kind))
        return _Dataset(self.path, name, found)


class _Dataset:
    """A dataset whose damage is named."""

    def __init__(self, path: Path, name: str, dataset: Any) -> None:
        self.shape: tuple[int, ...] = dataset.shape
        self._path, self._name, self._dataset = path, name, dataset
        self._is_checked = False

    def read_direct(self, dest: NDArray[Any], source_sel: Any = None, dest_sel: Any = None) -> None:
        with _damage_named(self._path):
            if not self._is_checked:
                _refuse_bombs(self._path, self._name, self._dataset)
                self._is_checked = True
            self._dataset.read_direct(dest, source_sel, dest_sel)


@contextmanager
def open_hdf5(path: Path) -> Iterator[HDF5File]:
    """Open an hdf5 file for reading.

    path (Path): The file.
    YIELDS (HDF5File): Its datasets.
    RAISES (WeightsError): E120 if it cannot be read, E126 without h5py, E127 if it is no hdf5 file.
    """
    try:
        import h5py
    except ImportError as error:
        raise WeightsError(Errors.E126.format(path=path)) from error
    try:
        path.open("rb").close()
    except OSError as error:
        raise WeightsError(Errors.E120.format(path=path, problem=detail_of(error))) from error
    with _damage_named(path):
        file = h5py.File(path, "r")
    with file:
        yield HDF5File(path, file)


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """What h5py cannot make sense of is the file's fault."""
    try:
        yield
    except WeightsError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError, zlib.error) as error:
        raise WeightsError(Errors.E127.format(path=path, problem=detail_of(error))) from error


def _unreadable_kind(found: Any) -> str | None:
    """What keeps an hdf5 object from being read, None for a plain dataset."""
    import h5py

    if not isinstance(found, h5py.Dataset):
        return f"a {type(found).__name__.lower()}"
    if found.is_virtual or found.external:
        return "a dataset kept in other files"
    if found.shape is None:
        return "a dataset without values"
    if found.dtype.kind != "f":
        return f"a dataset of {found.dtype}"
    filters = _filters(found)
    if not set(filters) <= {_DEFLATE, _SHUFFLE, _FLETCHER32} or len(set(filters)) < len(filters):
        return "a dataset compressed in another way than by gzip, once"
    if found.chunks is not None and _chunk_bytes(found) > max(found.nbytes, _SMALL):
        return "a dataset of chunks larger than itself"
    return None


def _filters(dataset: Any) -> list[int]:
    made_with = dataset.id.get_create_plist()
    return [made_with.get_filter(index)[0] for index in range(made_with.get_nfilters())]


def _chunk_bytes(dataset: Any) -> int:
    return int(math.prod(dataset.chunks) * dataset.dtype.itemsize)


def _refuse_bombs(path: Path, name: str, dataset: Any) -> None:
    """Whatever the size of a chunk should be, hdf5 inflates it to its end, a thousand times its stored size or more."""
    filters = _filters(dataset)
    if _DEFLATE not in filters:
        return
    if not hasattr(dataset.id, "chunk_iter"):
        found = "a compressed dataset, for which this h5py is too old"
        raise WeightsError(Errors.E130.format(path=path, name=name, found=found))
    stored: list[Any] = []
    most = math.prod(-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks))

    def collect(chunk: Any) -> bool | None:
        stored.append(chunk)
        return len(stored) > most or None  # anything but None ends it

    dataset.id.chunk_iter(collect)
    size = _chunk_bytes(dataset) + _SUM_BYTES
    for chunk in stored:
        if chunk.filter_mask >> filters.index(_DEFLATE) & 1:
            continue  # it would not have got smaller, and is stored as it is
        if chunk.size > size + size // 100 + _SMALL:
            raise ValueError(f"a chunk of '{name}' is stored in {chunk.size:,} bytes")
        data = dataset.id.read_direct_chunk(chunk.chunk_offset)[1]
        if len(zlib.decompressobj().decompress(data, size + 1)) > size:
            raise WeightsError(
                Errors.E130.format(path=path, name=name, found="a dataset of chunks that grow too large")
            )
