"""Files that are whole or not there: a crash or a full disk mid-write leaves what was there before."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import detail_of, shown

_BLOCK = 1 << 20


def write_atomically(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file beside its place and move it there.

    path (Path): The file; its directory is made if need be.
    data (bytes | Iterable): The contents, or pieces of them, of which no more than one need be in memory.
    RAISES (OSError): If it cannot be written; what was there before is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(beside, "xb") as file:
            for piece in (data,) if isinstance(data, bytes) else data:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def read_json(path: Path, most_bytes: int = 2**20) -> Any:
    """Read JSON from a file, in memory that is bounded whatever the file is.

    path (Path): UTF-8, with or without a mark of the byte order.
    most_bytes (int): How large it may be.
    RETURNS (Any): The value.
    RAISES (OSError): If it cannot be read. (ValueError, RecursionError): If it is too large or no JSON.
    """
    with open(path, "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it has more than {most_bytes:,} bytes")
    return json.loads(content.decode("utf-8-sig"))


def sha256_of(path: Path) -> str:
    """RETURNS (str): The checksum of a file, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def names_in(directory: Path) -> str:
    """RETURNS (str): The first files of a directory by name, as part of a message."""
    if not directory.is_dir():
        return "no such directory"
    try:
        return shown(sorted(os.listdir(directory))[:10])
    except OSError as error:
        return detail_of(error)


def remove_unfinished(path: Path) -> None:
    """Remove what a killed process left of writing files like this one.

    path (Path): A file that `write_atomically` writes; its name may be a glob pattern.
    """
    for left in path.parent.glob(f".{path.name}.*"):
        left.unlink(missing_ok=True)
