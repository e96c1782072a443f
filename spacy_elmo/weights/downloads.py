"""Files from the web into the cache directory: resumed, verified, landed whole or not at all.

    <cache>/…/weights.hdf5              the file, whole
    <cache>/…/.weights.hdf5.receipt     where it came from, its size and checksum
    <cache>/…/.weights.hdf5.part        what has come so far, and .part.json, which says of what

Only http and https are spoken, and only for files that are not in the cache yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from ..errors import Errors, WeightsError, detail_of
from .files import sha256_of, write_atomically
from .http_bodies import Interrupted, Patience, Refused, Unavailable, open_body

CACHE_VARIABLE = "SPACY_ELMO_CACHE"
OFFLINE_VARIABLE = "SPACY_ELMO_OFFLINE"

_APPLICATION = "spacy-elmo"
# An attempt that brought so much was worth it, and the ones before it are forgotten.
_WORTH_IT = 1 << 20


@dataclass(frozen=True)
class _Job:
    """A file to be fetched."""

    target: Path
    part: Path
    sha256: str | None
    size: int | None
    patience: Patience


def cache_directory() -> Path:
    """Where downloads are kept: SPACY_ELMO_CACHE, or as is usual on this platform. It may be deleted at any time.

    RETURNS (Path): The directory; it need not exist.
    RAISES (WeightsError): E165 if there is no home directory to put it in.
    """
    if moved := os.environ.get(CACHE_VARIABLE):
        return Path(moved).expanduser().absolute()
    try:
        if sys.platform == "win32":
            local = os.environ.get("LOCALAPPDATA")
            return (Path(local) if local else Path.home() / "AppData" / "Local") / _APPLICATION / "Cache"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / _APPLICATION
        # The XDG specification tells to ignore relative paths.
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / _APPLICATION
    except RuntimeError as error:
        raise WeightsError(Errors.E165.format(path=_APPLICATION, problem=detail_of(error))) from error


def is_offline(offline: bool = False) -> bool:
    """Whether nothing may be downloaded.

    offline (bool): What the caller was told.
    RETURNS (bool): True if `offline`, or if SPACY_ELMO_OFFLINE is set to anything but 0, false, no or off.
    """
    return offline or os.environ.get(OFFLINE_VARIABLE, "").strip().lower() not in ("", "0", "false", "no", "off")


def download(
    urls: str | Sequence[str],
    *,
    directory: Path | None = None,
    name: str | None = None,
    sha256: str | None = None,
    size: int | None = None,
    offline: bool = False,
    patience: Patience = Patience(),
) -> Path:
    """Fetch a file, unless it is in the cache. A progress bar goes to stderr.

    urls (str | Sequence[str]): http or https addresses of one and the same file; the first that answers is taken.
    directory (Path | None): Where to; by default a directory of its own in the cache.
    name (str | None): What to call the file; by default as in the address.
    sha256 (str | None): Checksum that the file must have.
    size (int | None): Bytes that the file must have.
    offline (bool): Touch no network, whatever else is said.
    patience (Patience): Timeouts, attempts and the largest size.
    RETURNS (Path): The file.
    RAISES (WeightsError): E160 if it is not in the cache and offline is asked for, E161 for an address of another kind,
        E162 if no address answers, E163 for a wrong length, E164 for a wrong checksum, E165 if it cannot be written.
    """
    urls = (urls,) if isinstance(urls, str) else tuple(urls)
    for url in urls:
        _require_web(url)
    directory = directory or cache_directory() / "urls" / url_key(urls[0])
    target = directory / (name or file_name(urls[0]))
    if _has_landed(target, sha256, size):
        return target
    if is_offline(offline):
        raise WeightsError(Errors.E160.format(name=target.name, urls=" or ".join(urls), path=target))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _alone(_beside(target, "lock")) as alone:
            if not _has_landed(target, sha256, size):
                part = _beside(target, "part" if alone else f"part-{secrets.token_hex(4)}")
                _fetch_from_any(urls, _Job(target, part, sha256, size, patience))
    except OSError as error:
        raise WeightsError(Errors.E165.format(path=target, problem=detail_of(error))) from error
    return target


def receipt(path: Path) -> dict[str, Any]:
    """What is known of a downloaded file.

    path (Path): The file.
    RETURNS (dict): "url", "size" and "sha256"; empty if it was not downloaded.
    """
    try:
        found = json.loads(_beside(path, "receipt").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def url_key(url: str) -> str:
    """RETURNS (str): A name for a directory, another one for each address."""
    return hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def file_name(url: str) -> str:
    """RETURNS (str): The last part of an address as a plain file name."""
    last = unquote(urlsplit(url).path).rsplit("/", 1)[-1]
    return re.sub(r"[^A-Za-z0-9._-]", "_", last).lstrip(".")[-100:] or "file"


def _require_web(url: str) -> None:
    try:
        parts = urlsplit(url)
        problem = None if parts.scheme in ("http", "https") and parts.hostname else "it is no http or https address"
    except ValueError as error:
        problem = str(error)
    if problem is not None or not url.isprintable() or " " in url:
        raise WeightsError(Errors.E161.format(url=url, problem=problem or "it has blanks or control characters"))


def _beside(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.{kind}")


def _has_landed(target: Path, sha256: str | None, size: int | None) -> bool:
    """A file counts if it is as large as it was when it landed, or was put there by hand; with a checksum to hold, its
    content is read again."""
    try:
        found = target.stat().st_size
    except OSError:
        return False
    if receipt(target).get("size", found) != found or (size is not None and size != found):
        return False
    return sha256 is None or sha256.lower() == sha256_of(target)


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Wait until no other process or thread is here. The system lets go of the lock when its holder dies.

    YIELDS (bool): False where the file system knows no locks.
    """
    with open(path, "a+b") as file:
        while (locked := _try_lock(file)) is None:
            time.sleep(0.05)
        yield locked


def _try_lock(file: IO[bytes]) -> bool | None:
    """RETURNS (bool | None): None if another one has it, False if there are no locks here."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return None
    except OSError:
        return False
    return True


def _fetch_from_any(urls: Sequence[str], job: _Job) -> None:
    problems = []
    for url in urls:
        try:
            _fetch(url, job)
            return
        except Unavailable as error:
            problems.append(f"{url}: {detail_of(error)}")
        except Refused as error:
            _forget(job.part)
            raise WeightsError(Errors.E163.format(url=url, problem=detail_of(error))) from error
    raise WeightsError(Errors.E162.format(name=job.target.name, problems="; ".join(problems)))


def _fetch(url: str, job: _Job) -> None:
    """Try until the file is whole, and as long as attempts bring something."""
    fruitless = 0
    while True:
        before = _size(job.part)
        try:
            _attempt(url, job)
            break
        except Interrupted as error:
            fruitless = 0 if _size(job.part) - before >= _WORTH_IT else fruitless + 1
            if fruitless >= job.patience.attempts:
                raise Unavailable(f"{error} (tried {fruitless} times)") from error
            time.sleep(job.patience.pause * 2 ** min(fruitless, 4))
    found = sha256_of(job.part)
    if job.sha256 is not None and found != job.sha256.lower():
        _forget(job.part)
        raise WeightsError(Errors.E164.format(url=url, found=found, expected=job.sha256))
    facts = {"url": url, "size": _size(job.part), "sha256": found}
    write_atomically(_beside(job.target, "receipt"), json.dumps(facts).encode("utf-8"))
    os.replace(job.part, job.target)
    _forget(job.part)


def _attempt(url: str, job: _Job) -> None:
    """Ask once for the rest of the file and write what comes."""
    start, validator = _to_resume(url, job.part)
    with open_body(url, start, validator, job.patience, is_checked=job.sha256 is not None) as body:
        if body.is_missing:
            _forget(job.part)
            raise Interrupted("what was begun does not fit what is there now")
        total = body.total if body.total is not None else job.size
        if job.size is not None and total != job.size:
            raise Refused(f"it has {total:,} bytes, but must have {job.size:,}")
        if total is not None and total > job.patience.most_bytes:
            raise Refused(f"it has {total:,} bytes, more than the {job.patience.most_bytes:,} that are taken")
        state = {"url": url, "validator": body.validator, "total": total}
        write_atomically(_beside(job.part, "json"), json.dumps(state).encode("utf-8"))
        with open(job.part, "ab" if body.start else "wb") as file, _progress(job, total, body.start) as advance:
            written = body.start
            for chunk in body.chunks():
                written += len(chunk)
                if written > (job.patience.most_bytes if total is None else total):
                    raise Refused(f"it sends on after the {total or job.patience.most_bytes:,} bytes that are to come")
                file.write(chunk)
                advance(len(chunk))
            file.flush()
            os.fsync(file.fileno())
    if total is not None and written != total:
        raise Interrupted(f"the connection ended after {written:,} of {total:,} bytes")


def _to_resume(url: str, part: Path) -> tuple[int, str | None]:
    """How much of a file is there, and what the server called the version of it; nothing if that is not sure."""
    try:
        state = json.loads(_beside(part, "json").read_text(encoding="utf-8"))
        same = state["url"] == url and isinstance(state["validator"], str) and state["validator"].isprintable()
        return (_size(part), state["validator"]) if same else (0, None)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0, None


@contextmanager
def _progress(job: _Job, total: int | None, start: int) -> Iterator[Callable[[int], object]]:
    from tqdm import tqdm

    with tqdm(total=total, initial=start, unit="B", unit_scale=True, unit_divisor=1024, desc=job.target.name) as bar:
        yield bar.update


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _beside(part, "json").unlink(missing_ok=True)
