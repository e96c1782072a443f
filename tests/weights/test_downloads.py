"""Downloads from a real HTTP server on loopback: what lands is whole and right, or nothing lands."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import downloads
from spacy_elmo.weights.downloads import cache_directory, download, file_name, is_offline, receipt
from spacy_elmo.weights.http_bodies import Patience
from tests.weights.web_server import Request, WebServer

BODY = random.Random(0).randbytes(300_000)
SHA256 = hashlib.sha256(BODY).hexdigest()
QUICK = Patience(timeout=0.5, least_bytes=1000, attempts=3, pause=0.001, most_bytes=1_000_000)


pytestmark = pytest.mark.usefixtures("cache")


def landed(cache: Path) -> list[str]:
    """The files that a user would see."""
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and not path.name.startswith("."))


def fetch(server: WebServer, path: str = "/w.hdf5", **options: object) -> Path:
    return download(server.url(path), patience=QUICK, **options)  # type: ignore[arg-type]


def assert_refused(server: WebServer, cache: Path, code: str, path: str = "/w.hdf5", **options: object) -> str:
    with pytest.raises(WeightsError, match=code) as caught:
        fetch(server, path, **options)
    assert landed(cache) == []
    return str(caught.value)


# What lands


def test_file_lands_with_its_facts(server: WebServer, cache: Path) -> None:
    url = server.serve_file("/w.hdf5", BODY)
    path = fetch(server, sha256=SHA256, size=len(BODY))
    assert path.read_bytes() == BODY and path.is_relative_to(cache) and landed(cache) == ["w.hdf5"]
    assert receipt(path) == {"url": url, "size": len(BODY), "sha256": SHA256}
    assert not list(cache.rglob("*.part*"))


def test_file_that_is_there_is_not_fetched_again(server: WebServer) -> None:
    server.serve_file("/w.hdf5", BODY)
    assert fetch(server) == fetch(server) == fetch(server, sha256=SHA256.upper())
    assert len(server.requests) == 1


def test_file_that_was_cut_since_is_fetched_again(server: WebServer) -> None:
    server.serve_file("/w.hdf5", BODY)
    path = fetch(server)
    path.write_bytes(BODY[:1000])
    assert fetch(server).read_bytes() == BODY


def test_changed_file_is_fetched_again_where_a_checksum_is_given(server: WebServer) -> None:
    server.serve_file("/w.hdf5", BODY)
    fetch(server).write_bytes(bytes(len(BODY)))
    assert fetch(server, sha256=SHA256).read_bytes() == BODY


def test_empty_file(server: WebServer) -> None:
    server.serve_file("/w.hdf5", b"")
    assert fetch(server).read_bytes() == b""


def test_answer_of_unknown_length(server: WebServer) -> None:
    server.answers["/w.hdf5"] = lambda request: request.answer(200, BODY, Content_Length=None)
    assert fetch(server, sha256=SHA256).read_bytes() == BODY


def test_chunked_answer(server: WebServer) -> None:
    def answer(request: Request) -> None:
        request.protocol_version = "HTTP/1.1"
        request.answer(
            200, b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY), Transfer_Encoding="chunked", Content_Length=None
        )
        request.close_connection = True

    server.answers["/w.hdf5"] = answer
    assert fetch(server).read_bytes() == BODY


# Redirections


def test_redirection_is_followed(server: WebServer) -> None:
    server.serve_file("/there", BODY)
    server.answers["/w.hdf5"] = lambda request: request.answer(302, Location="/there")
    path = fetch(server)
    assert path.name == "w.hdf5" and path.read_bytes() == BODY


def test_redirection_loop_ends(server: WebServer, cache: Path) -> None:
    server.answers["/w.hdf5"] = lambda request: request.answer(302, Location="/again")
    server.answers["/again"] = lambda request: request.answer(301, Location="/w.hdf5")
    assert "loop" in assert_refused(server, cache, "E162")
    assert len(server.requests) < 20


@pytest.mark.parametrize("place", ["ftp://127.0.0.1/w", "file:///etc/passwd", "data:,x"])
def test_redirection_to_other_than_the_web_is_refused(server: WebServer, cache: Path, place: str) -> None:
    server.answers["/w.hdf5"] = lambda request: request.answer(302, Location=place)
    assert_refused(server, cache, "E161|E162.*not allowed")


@pytest.mark.parametrize("place", ["http://[::1", f"http://{'a' * 70}/w", "http://127.0.0.1:abc/w"])
def test_redirection_to_an_address_that_cannot_be(server: WebServer, cache: Path, place: str) -> None:
    server.answers["/w.hdf5"] = lambda request: request.answer(302, Location=place)
    assert_refused(server, cache, "E162")


def test_body_of_a_redirection_is_not_read(server: WebServer) -> None:
    sent = []

    def answer(request: Request) -> None:
        request.answer(302, Location="/there", Content_Length=1 << 40)
        for _ in range(1000):
            request.wfile.write(bytes(1 << 16))
            sent.append(1 << 16)

    server.answers["/w.hdf5"] = answer
    server.serve_file("/there", BODY)
    assert fetch(server).read_bytes() == BODY
    assert sum(sent) < 32 << 20


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host/w", "data:,x", "http:///w", "//host/w", "http://[", "http://h/ w"]
)
def test_address_that_is_not_of_the_web_is_refused(url: str, cache: Path) -> None:
    with pytest.raises(WeightsError, match="E161"):
        download(url, patience=QUICK)
    assert not cache.exists()


# Bad answers


def test_404_is_final(server: WebServer, cache: Path) -> None:
    assert "404" in assert_refused(server, cache, "E162")
    assert len(server.requests) == 1


def test_what_the_server_says_is_one_clean_line(server: WebServer, cache: Path) -> None:
    server.answers["/w.hdf5"] = lambda request: (request.send_response(404, "\x1b[31mNo. "), request.end_headers())
    message = assert_refused(server, cache, "E162")
    assert message.isprintable() and "404 \N{REPLACEMENT CHARACTER}[31mNo. Try" in message


def test_a_range_beyond_all_numbers(server: WebServer, cache: Path) -> None:
    def answer(request: Request) -> None:
        if len(server.requests) == 1:
            cut_after(request, 100_000)
        else:
            request.answer(206, Content_Range=f"bytes {'1' * 5000}-2/3")

    server.answers["/w.hdf5"] = answer
    assert_refused(server, cache, "E163.*another part")


def test_500_then_the_file(server: WebServer) -> None:
    def answer(request: Request) -> None:
        if len(server.requests) < 3:
            request.answer(500)
        else:
            request.answer_range(BODY)

    server.answers["/w.hdf5"] = answer
    assert fetch(server).read_bytes() == BODY
    assert len(server.requests) == 3


def test_500_for_ever_ends(server: WebServer, cache: Path) -> None:
    server.answers["/w.hdf5"] = lambda request: request.answer(503)
    assert "503" in assert_refused(server, cache, "E162")
    assert len(server.requests) == QUICK.attempts


def test_server_that_is_not_there(cache: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(WeightsError, match="E162"):
        download(f"http://127.0.0.1:{port}/w", patience=QUICK)
    assert landed(cache) == []


def test_answer_that_is_no_http(cache: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def chatter() -> None:
            while True:
                try:
                    connection = listener.accept()[0]
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"220 ftp ready\r\n")

        threading.Thread(target=chatter, daemon=True).start()
        with pytest.raises(WeightsError, match="E162"):
            download(f"http://127.0.0.1:{listener.getsockname()[1]}/w", patience=QUICK)
    assert landed(cache) == []


def test_second_address_is_taken_where_the_first_has_nothing(server: WebServer) -> None:
    server.serve_file("/b", BODY)
    path = download([server.url("/a"), server.url("/b")], patience=QUICK)
    assert path.read_bytes() == BODY and receipt(path)["url"] == server.url("/b")


def test_all_addresses_are_named(server: WebServer) -> None:
    with pytest.raises(WeightsError, match="E162.*/a: .*404.*/b: .*404"):
        download([server.url("/a"), server.url("/b")], patience=QUICK)


# Cut connections


def cut_after(request: Request, size: int, body: bytes = BODY, etag: str = '"v1"') -> None:
    """Answer well, but hang up after so many bytes."""
    start = request.start_of_range() if request.headers.get("If-Range") == etag else 0
    rest = body[start:]
    headers = {"Content_Length": len(rest), "ETag": etag}
    if start:
        headers["Content_Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
    request.answer(206 if start else 200, rest[:size], **headers)


def test_cut_connection_is_resumed(server: WebServer) -> None:
    server.answers["/w.hdf5"] = lambda request: cut_after(request, 150_000 if len(server.requests) < 3 else 1 << 20)
    assert fetch(server, sha256=SHA256).read_bytes() == BODY
    assert [asked for _, asked in server.requests] == [None, "bytes=150000-"]


def test_later_process_resumes(server: WebServer) -> None:
    server.answers["/w.hdf5"] = lambda request: cut_after(request, 80_000)
    with pytest.raises(WeightsError, match="E162.*ended after 240,000 of 300,000 bytes"):
        fetch(server)
    server.requests.clear()
    server.serve_file("/w.hdf5", BODY)
    assert fetch(server).read_bytes() == BODY
    assert server.requests == [("/w.hdf5", "bytes=240000-")]


def test_connection_that_is_always_cut_ends(server: WebServer, cache: Path) -> None:
    server.answers["/w.hdf5"] = lambda request: cut_after(request, 10)
    assert_refused(server, cache, "E162.*ended after")
    assert len(server.requests) == QUICK.attempts


def test_attempts_that_bring_much_are_not_counted(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_WORTH_IT", 10_000)
    server.answers["/w.hdf5"] = lambda request: cut_after(request, 30_000)
    assert fetch(server).read_bytes() == BODY
    assert len(server.requests) == 10


def test_file_that_changed_meanwhile_is_begun_anew(server: WebServer) -> None:
    newer = BODY[::-1]

    def answer(request: Request) -> None:
        if len(server.requests) == 1:
            cut_after(request, 100_000)
        else:
            request.answer_range(newer, '"v2"')

    server.answers["/w.hdf5"] = answer
    assert fetch(server).read_bytes() == newer


def test_server_without_ranges_is_asked_anew(server: WebServer) -> None:
    def answer(request: Request) -> None:
        size = 100_000 if len(server.requests) == 1 else len(BODY)
        request.answer(200, BODY[:size], Content_Length=len(BODY), ETag='"v1"')

    server.answers["/w.hdf5"] = answer
    assert fetch(server).read_bytes() == BODY
    assert server.requests[1][1] == "bytes=100000-"


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"v1"'}])
def test_without_a_version_nothing_is_resumed(server: WebServer, headers: dict[str, str]) -> None:
    def answer(request: Request) -> None:
        size = 100_000 if len(server.requests) == 1 else len(BODY)
        request.answer(200, BODY[:size], Content_Length=len(BODY), **headers)

    server.answers["/w.hdf5"] = answer
    assert fetch(server).read_bytes() == BODY
    assert server.requests[1][1] is None


def test_what_came_from_one_address_is_not_continued_from_another(server: WebServer) -> None:
    """Two servers may call different versions by the same name."""
    server.answers["/a"] = lambda request: cut_after(request, 10_000, BODY[::-1])
    server.serve_file("/b", BODY)
    path = download([server.url("/a"), server.url("/b")], patience=QUICK)
    assert path.read_bytes() == BODY
    assert server.requests[-1] == ("/b", None)


def test_what_was_begun_and_fits_no_more_is_dropped(server: WebServer) -> None:
    server.answers["/w.hdf5"] = lambda request: cut_after(request, 50_000)
    with pytest.raises(WeightsError):
        fetch(server)
    shorter = BODY[:1000]
    server.serve_file("/w.hdf5", shorter)
    assert fetch(server).read_bytes() == shorter


def test_another_part_than_asked_is_refused(server: WebServer, cache: Path) -> None:
    def answer(request: Request) -> None:
        if len(server.requests) == 1:
            cut_after(request, 100_000)
        else:
            # As many bytes as are missing, but not those.
            request.answer(206, BODY[5:200_005], Content_Range=f"bytes 5-200004/{len(BODY)}", ETag='"v1"')

    server.answers["/w.hdf5"] = answer
    assert_refused(server, cache, "E163")


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"url": 3}', b'{"validator": "a\\r\\nEvil: 1"}', b"\xff"])
def test_damaged_notes_of_a_beginning_are_passed_over(server: WebServer, cache: Path, damage: bytes) -> None:
    server.answers["/w.hdf5"] = lambda request: cut_after(request, 100)
    with pytest.raises(WeightsError):
        fetch(server)
    for notes in cache.rglob("*.part.json"):
        notes.write_bytes(damage)
    server.requests.clear()
    server.serve_file("/w.hdf5", BODY)
    assert fetch(server).read_bytes() == BODY
    assert server.requests == [("/w.hdf5", None)]


# Lies


def test_wrong_checksum_keeps_nothing(server: WebServer, cache: Path) -> None:
    server.serve_file("/w.hdf5", BODY)
    message = assert_refused(server, cache, "E164", sha256="0" * 64)
    assert SHA256 in message
    assert [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size] == []


def test_wrong_size_keeps_nothing(server: WebServer, cache: Path) -> None:
    server.serve_file("/w.hdf5", BODY)
    assert_refused(server, cache, "E163.*300,000", size=5)


def test_more_than_was_told(server: WebServer, cache: Path) -> None:
    server.answers["/w.hdf5"] = lambda request: request.answer(200, BODY, Content_Length=1000)
    assert_refused(server, cache, "E163.*sends on")


def test_less_than_was_told(server: WebServer, cache: Path) -> None:
    server.answers["/w.hdf5"] = lambda request: request.answer(200, BODY, Content_Length=400_000)
    assert_refused(server, cache, "E162.*300,000 of 400,000")


def test_length_that_is_no_number(server: WebServer) -> None:
    server.answers["/w.hdf5"] = lambda request: request.answer(200, BODY, Content_Length="much")
    assert fetch(server).read_bytes() == BODY


def test_size_beyond_what_is_taken_is_not_even_begun(server: WebServer, cache: Path) -> None:
    server.answers["/w.hdf5"] = lambda request: request.answer(200, BODY, Content_Length=100 << 30)
    assert_refused(server, cache, "E163.*more than")


def test_endless_answer_is_cut(server: WebServer, cache: Path) -> None:
    def answer(request: Request) -> None:
        request.answer(200, Content_Length=None)
        while True:
            request.wfile.write(bytes(1 << 16))

    server.answers["/w.hdf5"] = answer
    assert_refused(server, cache, "E163.*sends on after")
    assert [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size] == []


def test_encoding_that_was_not_asked_for(server: WebServer, cache: Path) -> None:
    server.answers["/w.hdf5"] = lambda request: request.answer(200, BODY, Content_Encoding="gzip")
    assert_refused(server, cache, "E163.*gzip")


# Slow servers


def test_silent_server_ends(server: WebServer, cache: Path) -> None:
    server.answers["/w.hdf5"] = lambda request: time.sleep(5)
    began = time.monotonic()
    assert_refused(server, cache, "E162.*timed out")
    assert time.monotonic() - began < 4


def test_server_that_falls_silent_ends(server: WebServer, cache: Path) -> None:
    def answer(request: Request) -> None:
        request.answer(200, BODY[:10], Content_Length=len(BODY))
        time.sleep(5)

    server.answers["/w.hdf5"] = answer
    assert_refused(server, cache, "E162.*timed out")


def test_dripping_server_ends(server: WebServer, cache: Path) -> None:
    def answer(request: Request) -> None:
        request.answer(200, Content_Length=len(BODY))
        for _ in range(200):
            request.wfile.write(b"x")
            time.sleep(0.05)

    server.answers["/w.hdf5"] = answer
    began = time.monotonic()
    assert_refused(server, cache, "E162.*only")
    assert time.monotonic() - began < 5


def test_slow_server_that_keeps_on_is_waited_for(server: WebServer) -> None:
    def answer(request: Request) -> None:
        request.answer(200, Content_Length=len(BODY))
        for start in range(0, len(BODY), 30_000):
            request.wfile.write(BODY[start : start + 30_000])
            time.sleep(0.1)

    server.answers["/w.hdf5"] = answer
    assert fetch(server).read_bytes() == BODY


# Offline


@pytest.mark.parametrize("asked", ["argument", "variable"])
def test_offline_names_what_is_missing(
    server: WebServer, cache: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    url = server.serve_file("/w.hdf5", BODY)
    if asked == "variable":
        monkeypatch.setenv("SPACY_ELMO_OFFLINE", "1")
    assert url in assert_refused(server, cache, "E160", offline=asked == "argument")
    assert server.requests == []


def test_offline_takes_what_is_there(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.serve_file("/w.hdf5", BODY)
    path = fetch(server)
    monkeypatch.setenv("SPACY_ELMO_OFFLINE", "1")
    monkeypatch.setattr(socket, "socket", None)
    assert fetch(server) == path


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("yes", True), ("0", False), ("", False), (" False ", False), ("off", False)]
)
def test_offline_by_the_environment(monkeypatch: pytest.MonkeyPatch, value: str, expected: bool) -> None:
    monkeypatch.setenv("SPACY_ELMO_OFFLINE", value)
    assert is_offline() is expected
    assert is_offline(True) is True


# Many at once


def test_threads_fetch_a_file_once(server: WebServer) -> None:
    def answer(request: Request) -> None:
        time.sleep(0.1)
        request.answer_range(BODY)

    server.answers["/w.hdf5"] = answer
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(server).read_bytes())) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [BODY] * 5
    assert len(server.requests) == 1


def _in_a_process(url: str) -> str:
    return hashlib.sha256(download(url, patience=QUICK).read_bytes()).hexdigest()


def test_processes_do_not_harm_each_other(server: WebServer, cache: Path) -> None:
    def answer(request: Request) -> None:
        request.answer(200, Content_Length=len(BODY), ETag='"v1"')
        for start in range(0, len(BODY), 100_000):
            request.wfile.write(BODY[start : start + 100_000])
            time.sleep(0.05)

    server.answers["/w.hdf5"] = answer
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_in_a_process, [server.url("/w.hdf5")] * 4) == [SHA256] * 4
    assert len(server.requests) == 1 and landed(cache) == ["w.hdf5"]


def test_without_locks_each_has_a_beginning_of_its_own(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_try_lock", lambda file: False)
    barrier = threading.Barrier(3)

    def answer(request: Request) -> None:
        barrier.wait(5)
        request.answer_range(BODY)

    server.answers["/w.hdf5"] = answer
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(server).read_bytes())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [BODY] * 3


# Where to


def test_cache_is_moved_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACY_ELMO_CACHE", "~/elsewhere")
    assert cache_directory() == Path.home() / "elsewhere"


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "/home/u/.cache/spacy-elmo"),
        ("linux", {"XDG_CACHE_HOME": "/var/c"}, "/var/c/spacy-elmo"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/u/.cache/spacy-elmo"),
        ("darwin", {"XDG_CACHE_HOME": "/var/c"}, "/home/u/Library/Caches/spacy-elmo"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/spacy-elmo/Cache"),
        ("win32", {}, "/home/u/AppData/Local/spacy-elmo/Cache"),
    ],
)
def test_cache_follows_the_platform(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], expected: str
) -> None:
    for name in ("SPACY_ELMO_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/u")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_directory().as_posix() == expected


def test_place_that_cannot_be_written(server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.serve_file("/w.hdf5", BODY)
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPACY_ELMO_CACHE", str(tmp_path / "file"))
    with pytest.raises(WeightsError, match="E165.*SPACY_ELMO_CACHE"):
        fetch(server)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://h/a/weights.hdf5?dl=0#x", "weights.hdf5"),
        ("https://h/%2e%2e%2f..%2fetc%2fpasswd", "passwd"),
        ("https://h/a/..", "file"),
        ("https://h", "file"),
        ("https://h/ä b", "__b"),
        ("https://h/.ssh", "ssh"),
        ("https://h/" + "x" * 500, "x" * 100),
    ],
)
def test_names_of_files_are_plain(url: str, expected: str) -> None:
    assert file_name(url) == expected
