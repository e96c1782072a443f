"""What all tests share: a tiny model, where golden files and corpora lie, and tests that run only when asked for."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# The models of the tests are so small that threads would only wait for each other. Read when torch is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", default=False, help="include slow tests")


def pytest_configure(config: pytest.Config) -> None:
    # A shell that starts a command in the background lets it ignore Ctrl-C, which some tests send themselves.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "slow: runs only with --slow")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("slow") and not item.config.getoption("--slow"):
        pytest.skip("slow: run with --slow")


def _shared(name: str) -> Path:
    """A folder of what is shared between projects; the test is skipped where it is not."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("SPACY_ELMO_SHARED", beside)) / name
    if not folder.is_dir():
        pytest.skip(f"no {name} at {folder}: set SPACY_ELMO_SHARED to the folder that holds '{name}'")
    return folder


@pytest.fixture(scope="session")
def fixtures_dir() -> Path:
    """The golden files of bilm-tf, AllenNLP and pytorch-fast-elmo; its README.md says what is in each."""
    return _shared("fixtures")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Corpora and annotated data."""
    return _shared("data")


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A native weights directory of a tiny biLM with random weights; width 16, three layers."""
    import torch

    from spacy_elmo.lm.bilm import BiLM
    from spacy_elmo.lm.config import BiLMConfig
    from spacy_elmo.weights.native import save_bilm

    config = BiLMConfig(
        character_dim=4, filters=((1, 4), (2, 8), (3, 8)), max_characters=12, n_highway=1, projection=8, cells=16
    )
    torch.manual_seed(1)
    directory = tmp_path_factory.mktemp("weights") / "bilm"
    save_bilm(BiLM(config), directory)
    return directory
