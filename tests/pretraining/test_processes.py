"""Real processes: killed, interrupted, and without spaCy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spacy_elmo.pretraining.checkpoint import find_checkpoints
from spacy_elmo.pretraining.corpus import find_shards
from spacy_elmo.pretraining.loop import Run
from spacy_elmo.pretraining.settings import TrainingSettings
from tests.pretraining.small_runs import CONFIG, CPU, SETTINGS, write_corpus

EPOCHS = 6
SOURCE = Path(__file__).resolve().parents[2]


def train(directory: Path, text: Path, resume: bool) -> None:
    """What the command does, in this process."""
    settings = TrainingSettings(**{**SETTINGS, "epochs": EPOCHS})
    run = Run(directory, CONFIG, settings, find_shards([text]), [], CPU)
    run.begin(resume)
    run.train()


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def straight(tmp_path_factory, text) -> Path:
    directory = tmp_path_factory.mktemp("straight")
    train(directory, text, resume=False)
    return directory


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_process_is_resumed_exactly(tmp_path, text, straight, number):
    run = tmp_path / "run"
    changes = {**SETTINGS, "epochs": EPOCHS}
    (tmp_path / "config.json").write_text(json.dumps({"bilm": CONFIG.to_dict(), "training": changes}))
    arguments = [str(text), "--output", str(run), "--config", str(tmp_path / "config.json")]
    command = [sys.executable, "-m", "spacy_elmo.pretraining", *arguments]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while len(find_checkpoints(run / "checkpoints")) < 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == (130 if number == signal.SIGTERM else -number), errors
    assert not (run / "model.safetensors").exists()
    train(run, text, resume=True)
    for name in ("model.safetensors", "softmax.safetensors", "vocabulary.txt.gz"):
        assert (run / name).read_bytes() == (straight / name).read_bytes()


def test_training_needs_neither_spacy_nor_thinc():
    code = (
        "import sys\n"
        "class NotInstalled:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('spacy', 'thinc'):\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, NotInstalled())\n"
        "import spacy_elmo.pretraining.loop\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('spacy', 'thinc')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
