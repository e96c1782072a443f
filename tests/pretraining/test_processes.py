"""Real processes, killed and interrupted at any moment, with full disks and broken checkpoints: what they reach in the end
is what one that nobody disturbed reaches, bit for bit. And training without spaCy."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spacy_elmo.pretraining.checkpoint import find_checkpoints
from tests.pretraining.children import Child, Trap, each_once
from tests.pretraining.small_runs import CONFIG, SETTINGS, write_corpus

SOURCE = Path(__file__).resolve().parents[2]
RESULT = ["config.json", "model.safetensors", "softmax.safetensors", "vocabulary.txt.gz", "README.md"]
ROOM = "spacy_elmo.pretraining"

SAMPLED = {"kind": "sampled", "n_samples": 16, "distribution": "log-uniform"}
RUNS: dict[str, dict[str, Any]] = {
    "sentences": {"save_minutes": 0.001},
    "streams": {
        "objective": "streams",
        "unroll": 6,
        "softmax": SAMPLED,
        "optimizer": "adagrad",
        "schedule": "constant",
        "peak_rate": 0.2,
        "loss_scale": 6.0,
    },
    "bfloat16": {"precision": "bfloat16", "softmax": SAMPLED, "parts": 2, "epochs": 3, "variational_dropout": True},
    "bfloat16 streams": {"precision": "bfloat16", "objective": "streams", "unroll": 5, "save_minutes": 0.001},
    "plateau": {"plateau_factor": 0.7, "patience": 8, "evaluate_every": 3, "peak_rate": 0.05, "epochs": 5},
    "leaps": {
        "spike": 0.001,
        "max_rollbacks": 99,
        "save_every": 7,
        "save_minutes": 0.0005,
        "epochs": 5,
        "peak_rate": 1.0,
        "warmup_steps": 60,
        "schedule": "constant",
    },
}

PLACES = {
    "learning": (f"{ROOM}.learner:Learner.learn", 12),
    "updating": (f"{ROOM}.learner:Learner._update", 12),
    "reading": (f"{ROOM}.objective:pack", 25),
    "logging": (f"{ROOM}.metrics:Metrics.append", 3),
    "syncing": ("os:fsync", 5),
    "replacing": ("os:replace", 5),
    "evaluating": (f"{ROOM}.held_out:perplexity", 2),
    "collecting": (f"{ROOM}.learner:Learner.tensors", 4),
}
SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("text")
    (directory / "held_out.txt").write_text("w0 w1 w2\nw3\nw39 nowhere\n")
    write_corpus(directory / "train")
    return directory


@pytest.fixture(scope="module")
def straight(tmp_path_factory, text):
    """The directory of an undisturbed run by the name of its settings; each is done once."""
    return each_once(lambda: tmp_path_factory.mktemp("straight"), lambda run, name: command(run, text, name))


def command(run: Path, text: Path, name: str, *more: object) -> list[object]:
    settings = {**SETTINGS, "epochs": 2, **RUNS[name]}
    path = run.with_name("config.json")
    path.write_text(json.dumps({"bilm": CONFIG.to_dict(), "training": settings}))
    return [text / "train", "--output", run, "--held-out", text / "held_out.txt", "--config", path, *more]


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def assert_same_result(run: Path, straight: Path) -> None:
    assert metrics(run) == metrics(straight)
    for name in RESULT:
        assert (run / name).read_bytes() == (straight / name).read_bytes(), name
    assert [path for path in run.rglob("*") if path.name.startswith(".")] == []
    assert not (run / "run.lock").exists()


def break_newest_checkpoint(run: Path, chance: random.Random) -> None:
    """Turn a bit of it, if there is an older one."""
    newest, *older = [*find_checkpoints(run / "checkpoints"), None]
    if newest is not None and older[0] is not None:
        data = bytearray(newest.read_bytes())
        data[chance.randrange(len(data) // 2, len(data))] ^= 1
        newest.write_bytes(data)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_under_fire_ends_where_an_undisturbed_one_does(tmp_path, text, straight, name, seed):
    chance, run, hits = random.Random(f"{name} {seed}"), tmp_path / "run", []
    for _ in range(6):
        place, most = PLACES[chance.choice(list(PLACES))]
        trap = Trap(place, chance.randint(1, most), chance.choice(SIGNALS))
        child = Child(command(run, text, name, "--resume"), tmp_path / "log", traps=[trap])
        code = child.wait()
        assert code in (0, 130, -signal.SIGKILL), (trap, child.said)
        hits.append(code)
        if chance.random() < 0.3:
            break_newest_checkpoint(run, chance)
    child = Child(command(run, text, name, "--resume"), tmp_path / "log")
    assert child.wait() == 0, child.said
    assert len(hits) - hits.count(0) >= 2
    assert_same_result(run, straight(name))


@pytest.mark.parametrize(
    ("place", "call", "number", "saved"),
    [
        (f"{ROOM}.word_counts:WordCounts.add", 1, signal.SIGTERM, None),
        (f"{ROOM}.learner:Learner._update", 4, signal.SIGINT, 4),
        (f"{ROOM}.learner:Learner._update", 20, signal.SIGTERM, 20),
        (f"{ROOM}.held_out:perplexity", 1, signal.SIGINT, 10),
        (f"{ROOM}.checkpoint:_checksum", 2, signal.SIGTERM, 5),
        (f"{ROOM}.loop:save_bilm", 1, signal.SIGTERM, "last"),
    ],
)
def test_a_polite_request_saves_and_has_an_exit_code_of_its_own(tmp_path, text, straight, place, call, number, saved):
    run = tmp_path / "run"
    child = Child(command(run, text, "streams"), tmp_path / "log", traps=[Trap(place, call, number)])
    assert child.wait() == 130, child.said
    found = find_checkpoints(run / "checkpoints")
    last = metrics(straight("streams"))[-1]["step"]
    assert [path.name for path in found[:1]] == (
        [f"step-{last if saved == 'last' else saved:08}.safetensors"] if saved else []
    )
    assert f"Interrupted: {found[0]} is saved" in child.said if saved else "no step was saved yet" in child.said
    assert not (run / "model.safetensors").exists()
    child = Child(command(run, text, "streams", "--resume"), tmp_path / "log")
    assert child.wait() == 0, child.said
    assert_same_result(run, straight("streams"))


def test_a_second_request_does_not_break_off_the_saving(tmp_path, text):
    run = tmp_path / "run"
    places = (f"{ROOM}.learner:Learner._update", 3), (f"{ROOM}.learner:Learner.tensors", 1)
    traps = [Trap(place, call, signal.SIGINT) for place, call in places]
    child = Child(command(run, text, "streams"), tmp_path / "log", traps=traps)
    assert child.wait() == 130, child.said
    assert [path.name for path in find_checkpoints(run / "checkpoints")] == ["step-00000003.safetensors"]


def test_a_full_disk_ends_a_run_that_goes_on_when_there_is_room(tmp_path, text, straight):
    run = tmp_path / "run"
    child = Child(command(run, text, "streams"), tmp_path / "log", traps=[Trap("os:fsync", 5, signal.SIGKILL)])
    assert child.wait() == -signal.SIGKILL, child.said
    before = find_checkpoints(run / "checkpoints")
    assert before
    child = Child(command(run, text, "streams", "--resume"), tmp_path / "log", largest_file=6000)
    assert child.wait() == 1 and "E210" in child.said
    assert find_checkpoints(run / "checkpoints") == before
    child = Child(command(run, text, "streams", "--resume"), tmp_path / "log")
    assert child.wait() == 0, child.said
    assert_same_result(run, straight("streams"))


def test_saving_by_the_clock_changes_nothing(tmp_path, text, straight):
    changed = command(tmp_path / "run", text, "leaps", "--save-minutes", "0")
    child = Child(changed, tmp_path / "log")
    assert child.wait() == 0, child.said
    assert any("rolled_back_to" in line for line in metrics(straight("leaps")))
    for name in ("model.safetensors", "softmax.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (straight("leaps") / name).read_bytes()
    assert metrics(tmp_path / "run") == metrics(straight("leaps"))


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
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
