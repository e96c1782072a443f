"""What keeps a long run on its way, by itself and over interruptions."""

from __future__ import annotations

import gc
import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from spacy_elmo.errors import ElmoWarning
from spacy_elmo.pretraining import learner
from spacy_elmo.pretraining.checkpoint import BEST, find_checkpoints
from spacy_elmo.pretraining.loop import Run
from spacy_elmo.pretraining.stability import LossGuard, Plateau
from tests.pretraining.small_runs import small_run, trained, write_corpus

WEIGHTS = ["model.safetensors", "softmax.safetensors"]
STREAMS = {"objective": "streams", "unroll": 6}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def decaying(tmp_path_factory, text) -> Path:
    directory = tmp_path_factory.mktemp("decaying")
    trained(directory, text, **DECAYING)
    return directory


def stop_before(run: Run, step: int) -> None:
    """Ctrl-C when so many steps are done."""
    train_step = run._train_step

    def until(*arguments):
        if run.progress.step == step:
            raise KeyboardInterrupt
        return train_step(*arguments)

    run._train_step = until
    with pytest.raises(KeyboardInterrupt):
        run.train()
    run._train_step = train_step


def metrics(directory: Path) -> list[dict]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def assert_same_result(one: Path, other: Path) -> None:
    assert metrics(one) == metrics(other)
    for name in [*WEIGHTS, "README.md"]:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_a_loss_far_above_its_mean_is_a_spike_and_not_remembered():
    guard = LossGuard(1.0)
    assert not guard.is_spike(5.0) and not guard.is_spike(5.9)
    assert guard.mean == pytest.approx(5.09)
    assert guard.is_spike(6.2)
    assert guard.mean == pytest.approx(5.09)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_what_is_not_finite_is_a_spike_always(loss):
    assert LossGuard(0.0).is_spike(loss)
    guard = LossGuard(0.0, mean=1.0)
    assert not guard.is_spike(1000.0)


def test_a_plateau_counts_evaluations_since_the_best():
    plateau = Plateau()
    assert plateau.is_best(50.0, 10, "a") and plateau.is_best(40.0, 20, "a")
    assert not plateau.is_best(40.0, 30, "a") and not plateau.is_best(45.0, 40, "a")
    assert (plateau.best, plateau.best_step, plateau.since) == (40.0, 20, 2)
    assert plateau.is_best(60.0, 50, "b")
    assert (plateau.best, plateau.since) == (60.0, 0)


DECAYING = {"evaluate_every": 2, "epochs": 2, "peak_rate": 0.3, "warmup_steps": 1, "plateau_factor": 0.5}
PATIENT = {"evaluate_every": 2, "epochs": 6, "peak_rate": 0.3, "warmup_steps": 1}


def test_a_run_that_ended_early_stays_ended_and_goes_on_with_more_patience(tmp_path, text):
    first = trained(tmp_path / "run", text, patience=2, **PATIENT)
    ended = first.progress.plateau.since
    last = find_checkpoints(tmp_path / "run" / "checkpoints")[0].name
    assert ended == 2
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    trained(tmp_path / "copy", text, resume=True, patience=2, **PATIENT)
    assert find_checkpoints(tmp_path / "copy" / "checkpoints")[0].name == last
    assert_same_result(tmp_path / "copy", tmp_path / "run")
    trained(tmp_path / "run", text, resume=True, patience=5, **PATIENT)
    trained(tmp_path / "straight", text, patience=5, **PATIENT)
    assert find_checkpoints(tmp_path / "run" / "checkpoints")[0].name > last
    assert_same_result(tmp_path / "run", tmp_path / "straight")


@pytest.mark.parametrize("step", [4, 20, 24])
def test_what_an_evaluation_after_resuming_taught_is_not_lost(tmp_path, text, decaying, step):
    """Stopped where an evaluation is due, resumed, evaluated, and killed before the next checkpoint."""

    def interrupted() -> None:
        if run.progress.step == step:
            raise KeyboardInterrupt
        evaluate()

    def killed(*_: object) -> None:
        raise OSError("killed")

    run = small_run(tmp_path / "run", text, **DECAYING)
    run.begin(resume=False)
    evaluate, run.evaluate = run.evaluate, interrupted
    with pytest.raises(KeyboardInterrupt):
        run.train()
    run = small_run(tmp_path / "run", text, **DECAYING)
    run.begin(resume=True)
    assert run.progress.step == step
    run._train_step = killed
    with pytest.raises(OSError, match="killed"):
        run.train()
    assert metrics(tmp_path / "run")[-1].items() >= {"step": step, "perplexity_words": 9}.items()
    trained(tmp_path / "run", text, resume=True, **DECAYING)
    assert_same_result(tmp_path / "run", decaying)


def test_the_best_weights_that_are_gone_are_not_replaced_by_others_in_silence(tmp_path, text):
    run = small_run(tmp_path / "run", text, **PATIENT)
    run.begin(resume=False)
    run.train()
    assert run.progress.step == run.progress.plateau.best_step < 100
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    other = trained(tmp_path / "other", text, **{**PATIENT, "evaluate_every": 5, "seed": 8})
    shutil.copy(other.checkpoints / BEST, tmp_path / "copy" / "checkpoints" / BEST)
    with pytest.warns(ElmoWarning, match=f"W223.*step {run.progress.step}"):
        trained(tmp_path / "copy", text, resume=True, **PATIENT)
    assert (tmp_path / "copy" / WEIGHTS[0]).read_bytes() != (other.directory / WEIGHTS[0]).read_bytes()


@pytest.mark.parametrize("changes", [{}, STREAMS])
def test_going_back_keeps_gradients_where_they_were_and_counts_what_was_skipped(tmp_path, text, changes):
    run = small_run(tmp_path / "run", text, **changes)
    run.begin(resume=False)
    stop_before(run, 7)
    taught = run.learner
    good = {part: {name: tensor.clone() for name, tensor in named.items()} for part, named in taught.tensors().items()}
    run = small_run(tmp_path / "run", text, **changes)
    run.begin(resume=True)
    taught = run.learner
    stop_before(run, 9)
    taught._sums[3] += 2
    taught.take_back(good, "here")
    assert taught.window().skipped == 2 and math.isnan(taught.window().loss)
    assert all(torch.equal(good["bilm"][name], tensor) for name, tensor in taught.bilm.state_dict().items())
    place = taught._gradients.untyped_storage().data_ptr()
    assert all(parameter.grad.untyped_storage().data_ptr() == place for parameter in taught.parameters)


def test_a_step_that_is_passed_over_does_not_spoil_the_stream(tmp_path, text, monkeypatch):
    scores = learner.log_probabilities

    def spoilt(*arguments):
        found, state = scores(*arguments)
        if run.progress.step == 3:
            return found * math.nan, state._replace(cell=state.cell * math.nan)
        return found, state

    run = small_run(tmp_path / "run", text, **STREAMS)
    monkeypatch.setattr(learner, "log_probabilities", spoilt)
    run.begin(resume=False)
    run.train()
    reported = next(line for line in metrics(tmp_path / "run") if "skipped" in line)
    assert reported["skipped"] == 1 and math.isfinite(reported["loss"])
    assert all(state.cell.isfinite().all() for state in run.learner.states.values())


@pytest.mark.parametrize("changes", [{}, STREAMS])
def test_memory_does_not_grow_with_steps(tmp_path, text, changes):
    run = small_run(tmp_path / "run", text, **changes)
    run.begin(resume=False)

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    stop_before(run, 4)
    few = tensors()
    run.lock.acquire()
    stop_before(run, 19)
    assert tensors() <= few + 10
    assert not any(value.requires_grad for state in run.learner.states.values() for value in state)
