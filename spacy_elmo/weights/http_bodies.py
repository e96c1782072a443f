"""One request, one answer: the bytes of a file over http or https, from a place on if the server can."""

from __future__ import annotations

import http.client
import re
import ssl
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from ..errors import Errors, WeightsError, detail_of

_CHUNK = 1 << 16
# Codes that say: try again later.
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_BROKEN_CONNECTION = (OSError, http.client.HTTPException)


class Interrupted(Exception):
    """The answer did not come, or not to its end; asking again may help."""


class Unavailable(Exception):
    """The file is not to be had at this address."""


class Refused(Exception):
    """The answer is not what was asked for, and is not taken."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server and how much to take from it.

    timeout (float): Seconds to connect in, and between two pieces of an answer.
    least_bytes (int): Bytes that must come within `timeout` seconds; a server slower than that counts as gone.
    attempts (int): Attempts one after another that may bring next to nothing.
    pause (float): Seconds before the second attempt; doubled before each further one, up to sixteenfold.
    most_bytes (int): Larger files are not taken.
    """

    timeout: float = 30.0
    least_bytes: int = 10_000
    attempts: int = 4
    pause: float = 0.5
    most_bytes: int = 1 << 34


@dataclass
class Body:
    """An answer whose bytes are to be read.

    start (int): Where in the file the bytes begin.
    total (int | None): Size of the whole file, if told.
    validator (str | None): What the server calls this version of the file.
    is_missing (bool): There is nothing from the place on that was asked for.
    """

    start: int
    total: int | None
    validator: str | None
    is_missing: bool = False
    _source: Any = None
    _patience: Patience = Patience()

    def chunks(self) -> Iterator[bytes]:
        """Read to the end of the connection, one byte beyond the told size at most, so that a false size is seen.

        YIELDS (bytes): Pieces.
        RAISES (Interrupted): If the connection breaks, or brings too little.
        """
        left = None if self.total is None else self.total - self.start + 1
        since, came = time.monotonic(), 0
        while left is None or left > 0:
            try:
                chunk = self._source.read1(_CHUNK if left is None else min(_CHUNK, left))
            except (*_BROKEN_CONNECTION, ValueError) as error:
                raise Interrupted(f"the connection broke ({detail_of(error)})") from error
            if not chunk:
                return
            left = None if left is None else left - len(chunk)
            came += len(chunk)
            if time.monotonic() - since > self._patience.timeout:
                if came < self._patience.least_bytes and (left is None or left > 1):
                    raise Interrupted(f"only {came:,} bytes came in {self._patience.timeout:g} seconds")
                since, came = time.monotonic(), 0
            yield chunk


@contextmanager
def open_body(url: str, start: int, validator: str | None, patience: Patience, is_checked: bool) -> Iterator[Body]:
    """Ask for a file from a place on.

    url (str): http or https address.
    start (int): Bytes that are there already; 0 without a validator.
    validator (str | None): The version that they are of.
    patience (Patience): How long to wait.
    is_checked (bool): Whether the content will be held against a checksum, so that the way it came does not matter.
    YIELDS (Body): The answer; its `start` is 0 if the server begins anew.
    RAISES (Interrupted): If there is no answer, or one that says to try again. (Unavailable): For another answer than
        the file. (Refused): For one that cannot be read. (WeightsError): E161 for a redirection to another kind of place.
    """
    headers = {"User-Agent": "spacy-elmo", "Accept-Encoding": "identity"}
    if start and validator:
        headers |= {"Range": f"bytes={start}-", "If-Range": validator}
    try:
        request = urllib.request.Request(url, headers=headers)
        response = _opener(is_checked).open(request, timeout=patience.timeout)
    except HTTPError as error:
        error.close()
        if error.code == 416:
            yield Body(0, None, None, is_missing=True)
            return
        problem = " ".join(f"the server answers {error.code} {error.reason}".split())
        raise (Interrupted if error.code in _PASSING else Unavailable)(problem) from error
    except URLError as error:
        # A certificate that is not valid will not be so at the next attempt either.
        kind = Unavailable if isinstance(error.reason, ssl.SSLCertVerificationError) else Interrupted
        raise kind(detail_of(error.reason if isinstance(error.reason, Exception) else error)) from error
    except WeightsError:
        raise
    except (http.client.InvalidURL, ValueError) as error:
        # An address that cannot be: this one, or one that it sends to.
        raise Unavailable(detail_of(error)) from error
    except _BROKEN_CONNECTION as error:
        raise Interrupted(detail_of(error)) from error
    with response:
        yield _body_of(response, start if validator else 0, patience)


def _body_of(response: Any, asked: int, patience: Patience) -> Body:
    headers = response.headers
    encoding = headers.get("Content-Encoding", "identity").lower()
    if encoding not in ("", "identity"):
        raise Refused(f"it is encoded as {encoding!r}, which was not asked for")
    start, total = 0, _declared(response)
    if response.status == 206:
        match = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", headers.get("Content-Range", "").strip())
        if not asked or match is None or int(match[1]) != asked:
            raise Refused(f"the server answers with another part of the file ({headers.get('Content-Range')})")
        start, total = asked, None if match[2] == "*" else int(match[2])
    elif response.status != 200:
        raise Unavailable(f"the server answers {response.status} {response.reason}")
    # Behind the http client's back, where the length is told: it stops there, and would hide that more comes.
    source = response if total is None or response.chunked else response.fp
    return Body(start, total, _validator(headers), _source=source, _patience=patience)


def _declared(response: Any) -> int | None:
    length: int | None = response.length
    return None if response.chunked else length


def _validator(headers: Message) -> str | None:
    """A strong ETag, else the date; a weak ETag does not vouch for single bytes."""
    tag = headers.get("ETag", "")
    if re.fullmatch(r'"[^"\s]*"', tag):
        return tag
    return headers.get("Last-Modified")


class _WebOnly(urllib.request.HTTPRedirectHandler):
    """Follow redirections to http and https only, and none from https to http without a checksum."""

    def __init__(self, is_checked: bool) -> None:
        self.is_checked = is_checked

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if new not in ("http", "https"):
            raise WeightsError(Errors.E161.format(url=newurl, problem=f"{req.full_url} sends there"))
        if old == "https" and new == "http" and not self.is_checked:
            problem = f"{req.full_url} sends there, from an encrypted to an open connection, and there is no checksum"
            raise WeightsError(Errors.E161.format(url=newurl, problem=problem))
        # urllib would read what comes along with a redirection to its end, however long.
        fp.close()
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(is_checked: bool) -> urllib.request.OpenerDirector:
    """Unlike urllib's default it opens no files and no ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _WebOnly(is_checked),
    ):
        opener.add_handler(handler)
    return opener
