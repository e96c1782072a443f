"""Compressed datasets of hdf5: honest ones are read, bombs are not."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.weights.hdf5_model import CONFIG, HDF5Model

h5py = pytest.importorskip("h5py")

NAME = "CNN/b_cnn_0"


@pytest.fixture
def files(tmp_path: Path) -> HDF5Model:
    return HDF5Model(tmp_path)


def with_chunk(files: HDF5Model, data: bytes, filters: Callable[[Any], Any], mask: int = 0) -> HDF5Model:
    """Replace a dataset by one of a single chunk, stored as it stands here."""
    with h5py.File(files.weights, "a") as file:
        shape = file[NAME].shape
        del file[NAME]
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk(shape)
        filters(properties)
        space = h5py.h5s.create_simple(shape)
        dataset = h5py.h5d.create(file.id, NAME.encode(), h5py.h5t.IEEE_F32LE, space, properties)
        dataset.write_direct_chunk((0,), data, mask)
    return files


def gzip(properties: Any) -> None:
    properties.set_deflate(9)


def gzip_twice(properties: Any) -> None:
    gzip(properties)
    gzip(properties)


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True}, {"fletcher32": True}, {"shuffle": True, "fletcher32": True}]
)
@pytest.mark.parametrize("chunks", [(3, 5), (10, 24), True, (1, 1)])
@pytest.mark.parametrize("compression", ["gzip", None])
def test_what_h5py_writes_is_read(
    files: HDF5Model, options: dict[str, Any], chunks: Any, compression: str | None
) -> None:
    """Chunks of a single value do not get smaller, and hdf5 leaves them as they are."""
    name = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"
    with h5py.File(files.weights) as file:
        values = file[name][...]
    files.replace(name, values, chunks=chunks, compression=compression, **options)
    files.assert_loads_as(CONFIG)


def test_datasets_that_could_grow_are_read(files: HDF5Model) -> None:
    values = files.parameters["encoder.convolutions.0.bias"]
    files.replace(NAME, values, maxshape=(None,), chunks=(1024,), compression="gzip")
    files.assert_loads_as(CONFIG)


def test_a_chunk_that_is_not_compressed_though_others_would_be(files: HDF5Model) -> None:
    values = files.parameters["encoder.convolutions.0.bias"]
    with_chunk(files, values.tobytes(), gzip, mask=1).assert_loads_as(CONFIG)


def test_a_chunk_that_grows_beyond_its_size(files: HDF5Model) -> None:
    right = files.parameters["encoder.convolutions.0.bias"].tobytes()
    with_chunk(files, zlib.compress(right), gzip).assert_loads_as(CONFIG)
    with_chunk(files, zlib.compress(right + b"\0" * 2**20), gzip).assert_refused("E130", NAME, "grow too large")


def test_a_chunk_that_is_compressed_twice(files: HDF5Model) -> None:
    right = files.parameters["encoder.convolutions.0.bias"].tobytes()
    with_chunk(files, zlib.compress(zlib.compress(right)), gzip_twice).assert_refused("E130", NAME, "by gzip, once")


@pytest.mark.parametrize("compression", ["lzf", 32015])
def test_another_compression(files: HDF5Model, compression: str | int) -> None:
    values = files.parameters["encoder.convolutions.0.bias"]
    if compression == "lzf":
        files.replace(NAME, values, compression=compression)
    else:  # hdf5 would look for a program that knows it
        with_chunk(files, b"data", lambda properties: properties.set_filter(compression, h5py.h5z.FLAG_OPTIONAL))
    files.assert_refused("E130", NAME, "by gzip, once")


def test_a_chunk_larger_than_its_dataset(files: HDF5Model) -> None:
    values = files.parameters["encoder.convolutions.0.bias"]
    with h5py.File(files.weights, "a") as file:
        del file[NAME]
        file.create_dataset(NAME, values.shape, "f4", maxshape=(None,), chunks=(2**28,), compression="gzip")
        file[NAME].id.write_direct_chunk((0,), zlib.compress(np.zeros(2**20).tobytes()))
    files.assert_refused("E130", NAME, "larger than itself")


def test_no_chunk_at_all_is_zeros(files: HDF5Model) -> None:
    with h5py.File(files.weights, "a") as file:
        del file[NAME]
        file.create_dataset(NAME, (4,), "f4", chunks=(2,), compression="gzip")
    files.parameters["encoder.convolutions.0.bias"] = np.zeros(4, "f4")
    files.assert_loads_as(CONFIG)


def test_a_chunk_that_is_damaged(files: HDF5Model) -> None:
    data = zlib.compress(files.parameters["encoder.convolutions.0.bias"].tobytes())
    with_chunk(files, b"\xff" + data[1:], gzip).assert_refused("E127")
    files.replace(NAME, np.zeros(4, "f4"))
    with_chunk(files, data[:-6], gzip).assert_refused("E127")
