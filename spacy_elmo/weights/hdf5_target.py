"""What hdf5 files are written to, so that a failure to write is an error like any other."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any


class Hdf5Target(io.FileIO):
    """A file for hdf5 to write to.

    Hdf5 brings the process down where it cannot write while it closes, as on a full disk. So it is not told: the first failure,
    or interrupt, is kept for `check` to raise, and nothing is written after it.

    path (Path): The file; made anew.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._failure: BaseException | None = None

    def write(self, data: Any) -> int:
        """RETURNS (int): Bytes of the data, written or not."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest and self._failure is None:
                rest = rest[super().write(rest) :]
        except BaseException as error:
            self._failure = error
        return size

    def truncate(self, size: int | None = None) -> int:
        """RETURNS (int): The size asked for, set or not."""
        size = self.tell() if size is None else size
        try:
            if self._failure is None:
                super().truncate(size)
        except BaseException as error:
            self._failure = error
        return size

    def check(self) -> None:
        """RAISES (OSError): If something could not be written. (KeyboardInterrupt): If it was interrupted meanwhile."""
        if self._failure is not None:
            raise self._failure
