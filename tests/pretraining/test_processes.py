"""Real processes: killed, interrupted, and without spaCy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import trained, write_corpus

from spacy_elmo.pretraining.checkpoint import find_checkpoints

EPOCHS = 6
SOURCE = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def straight(tmp_path_factory, text) -> Path:
    directory = tmp_path_factory.mktemp("straight")
    trained(directory, text, epochs=EPOCHS)
    return directory


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_process_is_resumed_exactly(tmp_path, text, straight, number):
    run = tmp_path / "run"
    script = str(Path(__file__).with_name("small_runs.py"))
    command = [sys.executable, script, str(run), str(text), str(EPOCHS)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while len(find_checkpoints(run / "checkpoints")) < 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == -number, errors
    assert not (run / "model.safetensors").exists()
    trained(run, text, resume=True, epochs=EPOCHS)
    for name in ("model.safetensors", "softmax.safetensors", "vocabulary.txt.gz"):
        assert (run / name).read_bytes() == (straight / name).read_bytes()


def test_training_needs_neither_spacy_nor_thinc():
    code = (
        "import sys\n"
        "sys.modules.update(spacy=None, thinc=None)\n"
        "import spacy_elmo.pretraining.loop\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('spacy', 'thinc') and sys.modules[name]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
