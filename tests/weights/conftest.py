"""What tests of sources and of downloads share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.weights.web_server import WebServer, running_server


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory, and no settings of this machine's network."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "SPACY_ELMO_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPACY_ELMO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server() -> Iterator[WebServer]:
    """A server on loopback that serves nothing yet."""
    with running_server() as server:
        yield server
