"""Several processes as one run: the same steps, stopped together, resumed with more or fewer, without anyone who waits
for ever."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from spacy_elmo.errors import TrainingError
from spacy_elmo.pretraining import distributed
from spacy_elmo.pretraining.checkpoint import find_checkpoints
from spacy_elmo.pretraining.corpus import BLOCK_LINES
from spacy_elmo.pretraining.distributed import Workers
from tests.pretraining.children import SECONDS, Child, Trap, each_once, free_port, in_pair, loopback, ranks, start_pair
from tests.pretraining.small_runs import CONFIG, SETTINGS

SOURCE = Path(__file__).resolve().parents[2]
ROOM = "spacy_elmo.pretraining"
STREAMS = {"objective": "streams", "unroll": 5, "dropout": 0.1}
RUNS: dict[str, dict[str, Any]] = {
    "sentences": {"softmax": {"kind": "sampled", "n_samples": 16, "distribution": "log-uniform"}},
    "streams": STREAMS,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Long and short lines by turns of a block: of two parts, one has more than twice the words of the other."""
    directory = tmp_path_factory.mktemp("text")
    chance = random.Random(5)
    words = [f"w{number}" for number in range(40)]
    weights = [1 / (number + 1) for number in range(40)]
    lengths = [(1, 3) if line // BLOCK_LINES % 2 else (3, 6) for line in range(18 * BLOCK_LINES)]
    lines = [" ".join(chance.choices(words, weights, k=chance.randint(*ends))) for ends in lengths]
    (directory / "train.txt").write_text("\n".join(lines) + "\n")
    (directory / "held_out.txt").write_text("w0 w1 w2\nw3\nw39 nowhere\n")
    return directory


@pytest.fixture(scope="module")
def alone(tmp_path_factory, text):
    """The directory of a run of one process, of two parts, by the name of its settings; each is done once."""
    return each_once(lambda: tmp_path_factory.mktemp("alone"), lambda run, name: command(run, text, name))


def command(run: Path, text: Path, name: str, *more: object, **changes: Any) -> list[object]:
    settings = {**SETTINGS, "batch_words": 60, "buffer_words": 1000, "evaluate_every": 25, "save_every": 10, "parts": 2}
    path = run.with_name("config.json")
    path.write_text(json.dumps({"bilm": CONFIG.to_dict(), "training": {**settings, **RUNS[name], **changes}}))
    return [text / "train.txt", "--output", run, "--held-out", text / "held_out.txt", "--config", path, *more]


def metrics(run: Path, name: str) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[name] for line in lines if name in line}


def assert_same_result(run: Path, other: Path) -> None:
    """The order of a sum may differ between processes, but not what is read, dropped and drawn."""
    for name in ("loss", "words", "perplexity_joint", "rate", "gradient_norm"):
        assert metrics(run, name) == pytest.approx(metrics(other, name), rel=1e-4), name
    for file in ("model.safetensors", "softmax.safetensors"):
        one, two = load_file(run / file), load_file(other / file)
        assert one.keys() == two.keys()
        assert max((one[name] - two[name]).abs().max() for name in one) < 1e-4


def waited(children: list[Child]) -> list[int]:
    return [child.wait() for child in children]


def said(children: list[Child]) -> str:
    return "\n".join(child.said for child in children)


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_do_what_one_does_with_two_parts(tmp_path, text, alone, name):
    pair = start_pair(command(tmp_path / "run", text, name, parts=0), tmp_path / "logs")
    assert waited(pair) == [0, 0], said(pair)
    assert max(metrics(tmp_path / "run", "loss")) >= 50
    assert_same_result(tmp_path / "run", alone(name))
    assert "Wrote" in pair[0].said and "Wrote" not in pair[1].said


def test_bfloat16_streams_of_two_processes_are_collected_and_go_on(tmp_path, text):
    trap = Trap(f"{ROOM}.learner:Learner._update", 23, signal.SIGTERM)
    for directory, traps in (("straight", []), ("stopped", [trap])):
        (tmp_path / directory).mkdir()
        run = tmp_path / directory / "run"
        given = command(run, text, "streams", precision="bfloat16")
        pair = start_pair(given, tmp_path / directory / "logs", traps=[traps, traps])
        assert waited(pair) == ([0, 0] if directory == "straight" else [130, 130]), said(pair)
    pair = start_pair([*given, "--resume"], tmp_path / "stopped" / "logs")
    assert waited(pair) == [0, 0], said(pair)
    for file in ("model.safetensors", "softmax.safetensors"):
        assert (run / file).read_bytes() == (tmp_path / "straight" / "run" / file).read_bytes()


@pytest.mark.parametrize(("name", "first"), [("streams", 2), ("sentences", 1)])
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, text, alone, name, first):
    """Stopped by a signal to one of two, both stop at the same step."""
    run, logs = tmp_path / "run", tmp_path / "logs"
    logs.mkdir()
    trap = Trap(f"{ROOM}.learner:Learner._update", 27, signal.SIGTERM)
    given = command(run, text, name)
    begun = start_pair(given, logs, traps=[[], [trap]]) if first == 2 else [Child(given, logs / "0.log", traps=[trap])]
    assert waited(begun) == [130] * first, said(begun)
    # Who is asked in the midst of a step that all have agreed on stops with them after the next one.
    saved = find_checkpoints(run / "checkpoints")[0]
    assert saved.name == f"step-{26 + first:08}.safetensors"
    assert all(f"{saved} is saved" in child.said for child in begun)
    given = [*given, "--resume"]
    resumed = [Child(given, logs / "0.log")] if first == 2 else start_pair(given, logs)
    assert set(waited(resumed)) == {0}, said(resumed)
    assert_same_result(run, alone(name))
    assert [place["processes"] for place in metrics(run, "environment").values()] == [first, 3 - first]


@pytest.mark.parametrize(
    ("place", "saved"), [(f"{ROOM}.word_counts:WordCounts.add", None), (f"{ROOM}.held_out:perplexity", 25)]
)
def test_all_stop_though_one_of_them_is_at_work_for_the_others(tmp_path, text, place, saved):
    run = tmp_path / "run"
    pair = start_pair(command(run, text, "streams"), tmp_path / "logs", traps=[[Trap(place, 1, signal.SIGTERM)], []])
    codes = waited(pair)
    if saved is None:  # nothing was begun, and who was not asked says why it ends
        assert codes == [130, 1] and "E275" in pair[1].said
    else:
        assert codes == [130, 130], said(pair)
        assert find_checkpoints(run / "checkpoints")[0].name == f"step-{saved:08}.safetensors"


@pytest.mark.parametrize("killed", [0, 1])
def test_who_is_left_alone_ends_with_a_coded_error(tmp_path, text, alone, killed):
    run = tmp_path / "run"
    traps: list[list[Trap]] = [[], []]
    traps[killed] = [Trap(f"{ROOM}.learner:Learner._update", 33, signal.SIGKILL)]
    pair = start_pair(command(run, text, "streams"), tmp_path / "logs", traps=traps)
    codes = waited(pair)
    assert codes[killed] == -signal.SIGKILL and codes[1 - killed] == 1
    assert "E275" in pair[1 - killed].said and "Traceback" not in pair[1 - killed].said
    child = Child(command(run, text, "streams", "--resume"), tmp_path / "log")
    assert child.wait() == 0, child.said
    assert_same_result(run, alone("streams"))


def test_an_error_of_one_ends_all(tmp_path, text):
    copy = tmp_path / "text"
    copy.mkdir()
    for file in ("train.txt", "held_out.txt"):
        (copy / file).write_bytes((text / file).read_bytes())
    pair = start_pair(command(tmp_path / "run", copy, "sentences", epochs=30), tmp_path / "logs")
    deadline = time.monotonic() + SECONDS
    while not find_checkpoints(tmp_path / "run" / "checkpoints") and time.monotonic() < deadline:
        time.sleep(0.01)
    (copy / "train.txt").unlink()
    assert waited(pair) == [1, 1], said(pair)
    assert "E201" in said(pair)
    assert "Traceback" not in said(pair)


def test_more_processes_than_parts(tmp_path, text):
    pair = start_pair(command(tmp_path / "run", text, "sentences", parts=1), tmp_path / "logs")
    assert waited(pair) == [1, 1]
    assert all("E272" in child.said for child in pair)


def test_parts_that_are_empty_are_told_of(tmp_path, text):
    lines = (text / "train.txt").read_text().splitlines()[:BLOCK_LINES]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "held_out.txt").write_text("w0 w1\n")
    pair = start_pair(command(tmp_path / "run", tmp_path, "sentences"), tmp_path / "logs")
    assert waited(pair) == [0, 0], said(pair)
    assert "W222" in pair[0].said and "1 of the 2 parts" in pair[0].said
    assert "W222" not in pair[1].said


def test_processes_that_have_met_already_keep_their_group(tmp_path, text, alone):
    """As in a worker of Ray."""
    pair = start_pair(command(tmp_path / "run", text, "streams"), tmp_path / "logs", met=[True, True])
    assert waited(pair) == [0, 0], said(pair)
    assert_same_result(tmp_path / "run", alone("streams"))


def leave_while_the_first_group_is_held() -> None:
    """As modules of torch hold it that are imported later: as the default of an argument."""
    workers = Workers.join()
    held = torch.distributed.group.WORLD
    assert held is not None and workers.sum(1) == [2]
    threads = Path("/proc/self/task")
    before = len(list(threads.iterdir()))
    workers.leave()
    deadline = time.monotonic() + 20
    while len(list(threads.iterdir())) > before - 4 and time.monotonic() < deadline:
        time.sleep(0.01)  # the system may show a thread for a moment after its end
    assert len(list(threads.iterdir())) <= before - 4  # those of our groups


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_no_thread_that_was_at_work_is_left_to_die_with_the_interpreter():
    assert in_pair(leave_while_the_first_group_is_held) == [0, 0]


def wait_for_the_first_longer_than_for_all() -> None:
    distributed._TIMEOUT = timedelta(seconds=5)
    workers = Workers.join()
    assert workers.sum(1) == [2]
    if workers.is_first:
        time.sleep(8)
    assert workers.of_first({"words": 5} if workers.is_first else None, patiently=True) == {"words": 5}
    if workers.is_first:
        time.sleep(8)
        workers.leave()
    else:
        with pytest.raises(TrainingError, match="E275"):
            workers.sum(1)


def test_what_the_first_process_works_out_before_all_begin_may_take_its_time():
    assert in_pair(wait_for_the_first_longer_than_for_all) == [0, 0]


def test_who_cannot_meet_the_others_says_so(monkeypatch):
    for name, value in ranks(1, free_port()).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANK", "many")
    with pytest.raises(TrainingError, match="E270.*2 processes"):
        Workers.join()


@pytest.mark.parametrize("world", [None, "1"])
def test_one_process_needs_no_group(monkeypatch, world):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world is not None:
        monkeypatch.setenv("WORLD_SIZE", world)
    workers = Workers.join()
    assert (workers.rank, workers.world) == (0, 1)
    assert workers.sum(3, 4) == [3, 4] and workers.of_first({"a": 1}) == {"a": 1} and workers.agree(5)
    assert workers.parts(3) == [0, 1, 2]
    tensor = torch.ones(2)
    workers.add_up(tensor)
    assert tensor.tolist() == [1.0, 1.0]
    workers.leave()
    assert not torch.distributed.is_initialized()


def test_each_process_has_the_gpu_of_its_place(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert Workers(11, 16).local_gpu(0) == 3
    assert Workers(11, 16).local_gpu(-1) == -1
    assert Workers().local_gpu(5) == 5
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert Workers(11, 16).local_gpu(0) == 0


@pytest.mark.parametrize(("restarts", "shared", "warned"), [("3", "True", 1), ("0", "True", 0), ("3", "False", 0)])
def test_restarts_that_would_fail_are_warned_of(monkeypatch, restarts, shared, warned):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", shared)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        distributed._warn_of_restarts()
    assert ["W224" in str(warning.message) for warning in caught] == [True] * warned


class TestTorchrun:
    """The real thing."""

    def start(self, run: Path, text: Path, *more: str) -> subprocess.Popen[str]:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
        training = ["-m", f"{ROOM}", *map(str, command(run, text, "streams", "--resume"))]
        of_torch = {"GLOO_SOCKET_IFNAME": loopback(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), **of_torch}
        return subprocess.Popen(
            [sys.executable, *torchrun, *more, *training],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_step(self, run: Path, step: int, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + SECONDS
        while not (run / "checkpoints" / f"step-{step:08}.safetensors").exists():
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
            time.sleep(0.002)

    def test_a_run_whose_process_is_killed_is_begun_again_and_ends_the_same(self, tmp_path, text, alone):
        run = tmp_path / "run"
        process = self.start(run, text, "--max-restarts", "1")
        try:
            self.wait_for_step(run, 20, process)
            holder = (run / "run.lock").read_text().split()
            assert holder[0] == "process"
            os.kill(int(holder[1]), signal.SIGKILL)
            _, errors = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        assert process.returncode == 0, errors
        assert "Going on from step" in errors
        assert_same_result(run, alone("streams"))

    @pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
    def test_a_signal_to_torchrun_saves_one_step_of_all(self, tmp_path, text, alone, number):
        run = tmp_path / "run"
        process = self.start(run, text)
        try:
            self.wait_for_step(run, 10, process)
            process.send_signal(number)
            _, errors = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        saved = find_checkpoints(run / "checkpoints")[0]
        assert process.returncode not in (0, None)
        assert errors.count(f"Interrupted: {saved} is saved") == 2, errors
        assert not (run / "model.safetensors").exists()
        child = Child(command(run, text, "streams", "--resume"), tmp_path / "log")
        assert child.wait() == 0, child.said
        assert_same_result(run, alone("streams"))
