"""Output files that are whole or not there, however the command ends."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import ElmoError, Errors, detail_of


def refuse_directory(path: Path) -> None:
    """Say before the work, not after it, that a file cannot take the place of a directory.

    RAISES (ElmoError): E406 if the path is a directory.
    """
    if os.path.isdir(path):
        raise ElmoError(Errors.E406.format(path=path, detail="it is a directory"))


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Write a file beside its place and move it there when it is whole.

    What processes that were killed left of writing the same file is removed first.

    path (Path): The file; its directory is made if need be.
    YIELDS (Path): Where to write: an empty file, so that a place that cannot be written to is noticed at once.
    RAISES (ElmoError): E406 if the file cannot be written; what was there before is still there.
    """
    refuse_directory(path)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left_behind(path)
        fresh.touch()
        yield fresh
        with open(fresh, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        raise ElmoError(Errors.E406.format(path=path, detail=error.strerror or detail_of(error))) from error
    finally:
        with suppress(OSError):
            fresh.unlink()


def _remove_left_behind(path: Path) -> None:
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        process = left.name.removesuffix(".part").rpartition(".")[2]
        if process.isdecimal() and not _is_running(int(process)):
            with suppress(OSError):
                left.unlink()


def _is_running(process: int) -> bool:
    if os.name != "posix":
        # Windows lets nobody remove a file that a process has open, and knows no signal that only asks.
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
