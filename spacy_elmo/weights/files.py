"""Files that are whole or not there: a crash or a full disk mid-write leaves what was there before."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file beside its place and move it there.

    path (Path): The file; its directory is made if need be.
    data (bytes): The contents.
    RAISES (OSError): If it cannot be written; what was there before is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def directory_written_atomically(path: Path) -> Iterator[Path]:
    """Fill a directory beside its place and move it there when it is whole.

    path (Path): The directory; one that is there already is replaced.
    YIELDS (Path): The directory to fill.
    RAISES (OSError): If it cannot be written; what was there before is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    old = fresh.with_name(f"{fresh.name}.old")
    try:
        os.chmod(fresh, 0o777 & ~_umask())
        yield fresh
        for file in fresh.iterdir():
            _sync(file)
        if path.exists():
            os.replace(path, old)
        os.replace(fresh, path)
    except BaseException:
        if old.exists() and not path.exists():
            os.replace(old, path)
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _sync(file: Path) -> None:
    with open(file, "rb") as handle:
        os.fsync(handle.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
