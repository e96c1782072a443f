"""The directory of a training run: what stands in it, and that one process at a time writes it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from ..errors import Errors, TrainingError
from ..weights.files import remove_unfinished
from ..weights.native import CARD_FILE, CONFIG_FILE, SOFTMAX_FILE, VOCABULARY_FILE, WEIGHTS_FILE
from .checkpoint import find_checkpoints
from .text_files import SUFFIXES

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CHECKPOINTS, METRICS_FILE, LOCK_FILE = "checkpoints", "metrics.jsonl", "run.lock"
TEXT, HELD_OUT = "text-of-run", "held-out-of-run"
"""Directories of text that a run keeps, since it comes only once or was split for it."""

_DIRECTORIES = {CHECKPOINTS, TEXT, HELD_OUT}
_FILES = {METRICS_FILE, LOCK_FILE, CARD_FILE, CONFIG_FILE, SOFTMAX_FILE, VOCABULARY_FILE, WEIGHTS_FILE}


def is_file_of_run(path: Path, directory: Path) -> bool:
    """RETURNS (bool): Whether a run in the directory writes this file, so that it is no text to read."""
    place, parent = Path(os.path.realpath(directory)), Path(os.path.realpath(path.parent))
    if parent == place:
        return path.name in _FILES
    return any(place / name == above for name in _DIRECTORIES for above in (parent, *parent.parents))


def require_room(directory: Path, resume: bool) -> None:
    """Refuse a directory in which another run or a finished model is.

    directory (Path): That of a run.
    resume (bool): Whether a run that is there may go on.
    RAISES (TrainingError): E212 if it may not; weights without checkpoints are a finished model that no run may replace. E217
        if there is text in it, as in a corpus that a run has no place in.
    """
    begun = bool(find_checkpoints(directory / CHECKPOINTS))
    if (begun and not resume) or (not begun and (directory / WEIGHTS_FILE).exists()):
        raise TrainingError(Errors.E212.format(directory=directory))
    texts = (path for path in directory.iterdir() if path.name.endswith(SUFFIXES) and path.name not in _FILES)
    if not begun and (other := next((path for path in texts if not _is_printed_to(path)), None)) is not None:
        raise TrainingError(Errors.E217.format(directory=directory, name=other.name))


def make_run_directory(directory: Path, shards: Iterable[Path]) -> None:
    """Make the directory of a run if it is not there.

    directory (Path): The directory.
    shards (Iterable[Path]): The text of the run, which must lie elsewhere.
    RAISES (TrainingError): E215 if it cannot be made, E217 if a shard is in it, E218 if a file is in its place.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise TrainingError(Errors.E218.format(path=directory)) from error
    except OSError as error:
        raise TrainingError(Errors.E215.format(path=directory, detail=error)) from error
    place = os.path.realpath(directory)
    for shard in shards:
        if os.path.realpath(shard.parent) == place:
            raise TrainingError(Errors.E217.format(directory=directory, name=shard.name))


def _is_printed_to(path: Path) -> bool:
    """Whether what this process prints goes to the file: many keep the log of a run in its directory."""
    with suppress(OSError):
        there = os.stat(path)
        return any(os.path.samestat(there, os.fstat(stream)) for stream in (1, 2))
    return False


def sweep(directory: Path) -> None:
    """Remove what a killed run left of files that it was writing. Whoever calls holds the lock."""
    for name in _FILES:
        remove_unfinished(directory / name)


class RunLock:
    """Keeps two processes from one directory: a lock of the system (`flock`) on a file that names who holds it.

    The system lifts the lock when its process ends, however that ends. It holds between the processes of one machine,
    and between machines where their common file system has such locks. Where there are none (Windows, some network
    file systems), nothing is locked, and not starting two runs in one directory is up to the user.

    directory (Path): The directory, which must exist.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / LOCK_FILE
        self._file: TextIO | None = None

    def acquire(self) -> None:
        """Take the lock; nothing happens if it is held already.

        RAISES (TrainingError): E219 if another holds it, E215 if its file cannot be written.
        """
        if fcntl is None or self._file is not None:
            return
        try:
            while self._file is None:
                self._file = self._locked()
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {platform.node()}")
            self._file.flush()
        except OSError as error:
            self.release()
            raise TrainingError(Errors.E215.format(path=self.path, detail=error)) from error

    def release(self) -> None:
        """Give the lock back, and delete its file."""
        if self._file is not None:
            with suppress(OSError):
                self.path.unlink()
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _locked(self) -> TextIO | None:
        """The file, locked; None if it was deleted meanwhile by who held it before, so that it locks nothing."""
        file = open(self.path, "a+", encoding="utf-8", errors="replace")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            with file:
                file.seek(0)
                holder = file.read() or "a process that has just begun"
            raise TrainingError(Errors.E219.format(directory=self.path.parent, holder=holder)) from error
        except OSError:
            return file  # a file system without such locks
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):
                return file
        file.close()
        return None
