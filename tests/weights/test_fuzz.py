"""Hostile files can do nothing: every reader gives a model or an error of the catalogue, in little memory and time, and
touches nothing outside of the cache. A few hundred of `hostile_inputs`; more of them, by hand:

    python -m tests.weights.test_fuzz hdf5 1000 5000
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from spacy_elmo.errors import ElmoError
from spacy_elmo.weights.formats import load_model
from tests.weights.hostile_inputs import Files, templates, write_hostile

KINDS = ("native", "native-words", "hdf5", "hdf5-words", "tf", "many-langs", "many-langs-zip", "zip")
INPUTS = 40
MOST_SECONDS = 10
MOST_BYTES = 1 << 30


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    return templates(tmp_path_factory.mktemp("templates"))


@pytest.fixture
def little_memory() -> Iterator[None]:
    """No more address space than there is now, and MOST_BYTES."""
    resource = pytest.importorskip("resource")
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("the system does not say how much memory is in use")
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(status.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def outcome(source: Path) -> str:
    """RETURNS (str): The code of the error that came, or "accepted"."""
    started = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = load_model(source, with_softmax=True, offline=True)
        assert all(parameter.isfinite().all() for parameter in model.bilm.parameters())
        result = "accepted"
    except ElmoError as error:
        message = str(error)
        assert message.startswith("[ELMO-E1") and message.isprintable() and len(message) < 4000, message[:4000]
        result = message[6:10]
    assert time.monotonic() - started < MOST_SECONDS
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_files_give_an_error_of_the_catalogue(
    kind: str, models: dict[str, Files], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little_memory: None
) -> None:
    monkeypatch.setenv("SPACY_ELMO_CACHE", str(tmp_path / "cache"))
    outcomes = Counter[str]()
    for seed in range(INPUTS):
        source = write_hostile(kind, models[kind], seed, tmp_path / str(seed))
        before = {path: path.stat().st_mtime_ns for path in source.parent.rglob("*")}
        outcomes[outcome(source)] += 1
        assert before == {path: path.stat().st_mtime_ns for path in source.parent.rglob("*") if path in before}
    assert {path.name for path in tmp_path.iterdir()} <= {"cache", *map(str, range(INPUTS))}
    assert outcomes["accepted"] < INPUTS / 2 and len(outcomes) > 2, outcomes


@pytest.mark.parametrize("kind", KINDS)
def test_undamaged_files_are_read(kind: str, models: dict[str, Files], tmp_path: Path) -> None:
    if kind == "zip":
        pytest.skip("they are those of hdf5")
    for name, content in models[kind].items():
        (tmp_path / name).write_bytes(content)
    assert outcome(tmp_path) == "accepted"


def main(kind: str, first: str, number: str) -> None:
    """Run many by hand; what is wrong ends the program and is left in place."""
    root = Path(tempfile.mkdtemp())
    models, outcomes = templates(root / "templates"), Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPACY_ELMO_CACHE", str(root / "cache"))
        for seed in range(int(first), int(first) + int(number)):
            print(f"\r{kind} {seed} {root}", end="", file=sys.stderr)
            outcomes[outcome(write_hostile(kind, models[kind], seed, root / "case"))] += 1
            shutil.rmtree(root / "case")
            shutil.rmtree(root / "cache", ignore_errors=True)
    print(f"\n{kind}: {number} inputs, {dict(outcomes.most_common())}")
    shutil.rmtree(root)


if __name__ == "__main__":
    main(*sys.argv[1:])
