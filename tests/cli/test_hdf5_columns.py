"""HDF5 files that are interrupted while they are written: closed in order, with what was written before."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spacy_elmo.cli.hdf5_columns import Hdf5Target, hdf5_columns

h5py = pytest.importorskip("h5py")

LAYOUT = {"rows": (np.int64, (2,))}


def test_interrupt_while_the_file_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, made = h5py.File, []

    def make(*arguments: Any) -> Any:
        made.append(plain(*arguments))
        signal.raise_signal(signal.SIGINT)
        return made[-1]

    monkeypatch.setattr(h5py, "File", make)
    with pytest.raises(KeyboardInterrupt), hdf5_columns(tmp_path / "v.h5", LAYOUT):
        pytest.fail("begun")
    assert [bool(file) for file in made] == [False], "an open file is what HDF5 falls over at the end of the process"


def test_interrupt_while_rows_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, interrupts = Hdf5Target.write, [signal.SIGINT]

    def write(target: Hdf5Target, data: Any) -> int:
        if interrupts:
            signal.raise_signal(interrupts.pop())
        return plain(target, data)

    rows = np.arange(2_000_000).reshape(-1, 2)
    with pytest.raises(KeyboardInterrupt), hdf5_columns(tmp_path / "v.h5", LAYOUT) as columns:
        monkeypatch.setattr(Hdf5Target, "write", write)
        columns["rows"].append(rows)
    with h5py.File(tmp_path / "v.h5") as file:
        np.testing.assert_array_equal(file["rows"][...], rows)
