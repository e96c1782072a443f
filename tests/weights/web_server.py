"""A real HTTP server on loopback that behaves as badly as a test asks it to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Request(BaseHTTPRequestHandler):
    """One request; `path` and `headers` as usual."""

    server: WebServer

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("Range")))
        try:
            self.server.answers[self.path.split("?")[0]](self)
        except KeyError:
            self.answer(404, b"nothing here")
        except (BrokenPipeError, ConnectionResetError):
            pass

    def answer(self, status: int, body: bytes = b"", **headers: object) -> None:
        """Send an answer; `Content_Length` and others may lie."""
        self.send_response(status)
        for name, value in {"Content_Length": len(body), **headers}.items():
            if value is not None:
                self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def start_of_range(self) -> int:
        asked = self.headers.get("Range")
        return 0 if asked is None else int(asked.removeprefix("bytes=").removesuffix("-"))

    def answer_range(self, body: bytes, etag: str = '"v1"') -> None:
        """What a good server does."""
        start = self.start_of_range() if self.headers.get("If-Range") == etag else 0
        if start >= len(body) > 0:
            self.answer(416, Content_Range=f"bytes */{len(body)}")
        elif start:
            content_range = f"bytes {start}-{len(body) - 1}/{len(body)}"
            self.answer(206, body[start:], Content_Range=content_range, ETag=etag)
        else:
            self.answer(200, body, ETag=etag)

    def log_message(self, format: str, *args: object) -> None:
        pass


class WebServer(ThreadingHTTPServer):
    """answers (dict): What to do for a path. requests (list): (path, Range) of each request so far."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.answers: dict[str, Callable[[Request], None]] = {}
        self.requests: list[tuple[str, str | None]] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"

    def serve_file(self, path: str, body: bytes) -> str:
        self.answers[path] = lambda request: request.answer_range(body)
        return self.url(path)


@contextmanager
def running_server() -> Iterator[WebServer]:
    server = WebServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
