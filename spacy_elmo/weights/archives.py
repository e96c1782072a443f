"""Zip files of ELMo models, as the NLPL repository has them, unpacked so that a hostile one can do nothing."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..errors import Errors, WeightsError, detail_of, shown

MOST_BYTES = 1 << 34
_MOST_MEMBERS = 1000
# Weights hardly get smaller; a file of zeros gets 1000 times smaller.
_MOST_RATIO = 200
_SMALL = 1 << 24
_BLOCK = 1 << 20
# What a damaged file can make zipfile raise.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OverflowError, NotImplementedError, RuntimeError)

# What a model consists of, in any of the formats that are read. Everything else stays in the zip file.
_KNOWN_MEMBERS = re.compile(
    r"[\w.-]*\.(json|hdf5|h5|safetensors|dic|md|txt|txt\.gz)|checkpoint|LICENSE|README"
    r"|(encoder|token_embedder|classifier)\.pkl|[\w.-]*\.(index|data-\d{5}-of-\d{5})",
    re.ASCII,
)


def unpack(path: Path, target: Path, most_bytes: int = MOST_BYTES) -> None:
    """Unpack what belongs to a model, into a directory that is there whole or not at all.

    path (Path): The zip file. All its files may lie in one and the same folder.
    target (Path): The directory to make.
    most_bytes (int): What all files together may be.
    RAISES (WeightsError): E165 if the directory cannot be written, E166 for a damaged file, E167 for one that asks for
        too much, or for a place that is not its own.
    """
    with _open_zip(path) as archive:
        members = _members(archive, path, most_bytes)
        fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            fresh.mkdir(parents=True)
            for name, member in members.items():
                _unpack_one(archive, member, fresh / name)
            _move(fresh, target)
        except OSError as error:
            raise WeightsError(Errors.E165.format(path=target, problem=detail_of(error))) from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def member_names(path: Path) -> list[str]:
    """RETURNS (list[str]): The names in a zip file, as they stand.

    RAISES (WeightsError): E166 for a damaged file, E167 for one with too many members.
    """
    with _open_zip(path) as archive:
        return archive.namelist()


@contextmanager
def _open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with open(path, "rb") as file, zipfile.ZipFile(_Sparing(file)) as archive:
            if len(archive.infolist()) > _MOST_MEMBERS:
                raise WeightsError(Errors.E167.format(path=path, problem=f"it has more than {_MOST_MEMBERS} members"))
            yield archive
    except _DAMAGED as error:
        if isinstance(error, WeightsError):
            raise
        raise WeightsError(Errors.E166.format(path=path, problem=detail_of(error))) from error
    except OSError as error:
        raise WeightsError(Errors.E120.format(path=path, problem=detail_of(error))) from error


class _Sparing:
    """A file that gives at most so much at once, and nothing from before its beginning: a table of contents can claim to be as
    large as the file, and a member to lie anywhere."""

    MOST = 1 << 21

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self.MOST + 1 if size < 0 else min(size, self.MOST + 1))
        if len(data) > self.MOST:
            raise zipfile.BadZipFile("its table of contents is too large")
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_SET and offset < 0:
            raise zipfile.BadZipFile("a member lies before its beginning")
        return self._file.seek(offset, whence)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _members(archive: zipfile.ZipFile, path: Path, most_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """The files to unpack, by the names that they get."""
    files = [member for member in archive.infolist() if not member.is_dir()]
    for member in files:
        if (problem := _what_is_wrong(member)) is not None:
            raise WeightsError(Errors.E167.format(path=path, problem=f"{shown(member.filename)} {problem}"))
    folder = _common_folder([member.filename for member in files])
    named = [(member.filename.removeprefix(folder), member) for member in files]
    members = {name: member for name, member in named if _KNOWN_MEMBERS.fullmatch(name)}
    # Some file systems do not tell names apart by case.
    names = [name.lower() for name, _ in named if name in members]
    if len(set(names)) < len(names):
        raise WeightsError(Errors.E167.format(path=path, problem=f"it has a name twice ({shown(sorted(names))})"))
    total = sum(member.file_size for member in members.values())
    if total > most_bytes:
        problem = f"unpacked it would be {total:,} bytes, more than the {most_bytes:,} that are taken"
        raise WeightsError(Errors.E167.format(path=path, problem=problem))
    return members


def _what_is_wrong(member: zipfile.ZipInfo) -> str | None:
    """What no honest zip file of a model has."""
    name = member.filename
    parts = re.split(r"[/\\]", member.orig_filename)
    if (
        name.startswith("/")
        or "\\" in member.orig_filename
        or ".." in parts
        or ":" in name
        or "\0" in member.orig_filename
    ):
        return "leads out of its directory"
    mode = member.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "is no plain file"
    if member.flag_bits & 0x1:
        return "is encrypted"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is compressed in a way that is not read"
    if member.file_size > _SMALL and member.file_size > _MOST_RATIO * max(1, member.compress_size):
        return f"would grow from {member.compress_size:,} to {member.file_size:,} bytes"
    return None


def _common_folder(names: list[str]) -> str:
    """The one folder that all files lie in, with its slash; what macOS puts beside does not count."""
    folders = {name.partition("/")[0] if "/" in name else "" for name in names if not name.startswith("__MACOSX/")}
    folder = folders.pop() if len(folders) == 1 else ""
    return f"{folder}/" if folder else ""


def _unpack_one(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    """zipfile stops at the size that was told, and checks the sum."""
    with archive.open(member) as source, open(target, "xb") as file:
        while block := source.read(_BLOCK):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _move(fresh: Path, target: Path) -> None:
    try:
        os.replace(fresh, target)
    except OSError:
        # Another process was first, and has unpacked the same.
        if not target.is_dir():
            raise
