from __future__ import annotations

import errno
import itertools
import json
import math
import shutil
import signal
import warnings
from pathlib import Path

import pytest
import torch

from spacy_elmo.errors import ConfigError, CorpusError, ElmoWarning, TrainingError
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.pretraining import held_out, learner, loop
from spacy_elmo.pretraining.checkpoint import find_checkpoints, read_checkpoint
from spacy_elmo.pretraining.corpus import Corpus, find_shards
from spacy_elmo.pretraining.evaluate import perplexity
from spacy_elmo.pretraining.loop import Run
from spacy_elmo.pretraining.settings import TrainingSettings
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.weights.native import load_bilm, load_head
from tests.pretraining.small_runs import CONFIG, small_run, trained, without_numba, write_corpus

RESULT = ["config.json", "model.safetensors", "softmax.safetensors", "vocabulary.txt.gz"]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def straight(tmp_path_factory, text) -> Path:
    directory = tmp_path_factory.mktemp("straight")
    trained(directory, text)
    return directory


@pytest.fixture
def begun(tmp_path, text) -> Path:
    """A run that was stopped by Ctrl-C after 12 steps."""
    stop_after(small_run(tmp_path / "run", text), 12)
    return tmp_path / "run"


def stop_after(run: Run, steps: int, begin: bool = True) -> None:
    def train_step(position, batches, step=run._train_step):
        if run.progress.step == steps:
            raise KeyboardInterrupt
        return step(position, batches)

    run._train_step = train_step
    if begin:
        run.begin(resume=False)
    with pytest.raises(KeyboardInterrupt):
        run.train()


def metrics(directory: Path) -> list[dict]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def assert_same_result(one: Path, other: Path) -> None:
    for name in RESULT:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert metrics(one) == metrics(other)
    unfinished = [path for path in other.rglob(".*") if path.is_file()]
    assert unfinished == []


def test_a_run_gives_weights_that_are_read_back(straight, text):
    vocabulary = Vocabulary.load(straight / "vocabulary.txt.gz")
    (held_out,) = small_run(straight, text).held_out.domains.values()
    found = perplexity(load_bilm(straight), load_head(straight), vocabulary, held_out)
    last = metrics(straight)[-1]
    assert found.joint == pytest.approx(last["perplexity_joint"], rel=1e-5)
    assert f"forward: {found.forward:.2f}" in (straight / "README.md").read_text()
    assert not load_bilm(straight).forward_lm[0].bias.requires_grad


def test_metrics_count_the_corpus_and_no_step_is_evaluated_twice(straight, text):
    lines = metrics(straight)
    words = sum(map(len, Corpus.find([text]).sentences()))
    assert lines[0].items() >= {"step": 0, "sentences": 150, "words": words, "empty_lines": 0, "cut_lines": 0}.items()
    evaluated = [line["step"] for line in lines if "perplexity_joint" in line]
    assert evaluated == sorted(set(evaluated)) and evaluated[:2] == [10, 20]
    assert lines[-1]["words"] == words


@pytest.mark.parametrize("steps", [1, 5, 10, 13])
def test_resuming_gives_what_one_go_gives(tmp_path, text, straight, steps):
    stop_after(small_run(tmp_path / "run", text), steps)
    trained(tmp_path / "run", text, resume=True)
    assert_same_result(straight, tmp_path / "run")


def test_resuming_a_finished_run_changes_nothing_wherever_that_is(tmp_path, text, straight, monkeypatch):
    copy = shutil.copytree(straight, tmp_path / "copy")
    monkeypatch.setattr(loop, "environment", lambda *_: {"system": "another"})
    trained(copy, text, resume=True)
    assert_same_result(straight, copy)


def test_a_run_that_goes_on_elsewhere_says_so_once_for_what_it_went_on_with(tmp_path, text, straight, monkeypatch):
    run = tmp_path / "run"
    stop_after(small_run(run, text), 5)
    monkeypatch.setattr(loop, "environment", lambda *_: {"system": "another"})
    again = small_run(run, text)
    again.begin(resume=True)
    stop_after(again, 5, begin=False)
    trained(run, text, resume=True)
    places = [(line["step"], line["environment"]["system"]) for line in metrics(run) if "environment" in line]
    assert places[1:] == [(5, "another")] and places[0][0] == 0 != places[0][1]


def test_lines_after_the_checkpoint_are_dropped(begun, text, straight):
    with open(begun / "metrics.jsonl", "a") as file:
        file.write('{"step": 14, "loss": 1.0}\n{"step": 99, "lo')
    trained(begun, text, resume=True)
    assert_same_result(straight, begun)


def test_going_on_from_the_checkpoint_before_a_broken_one(begun, text, straight):
    find_checkpoints(begun / "checkpoints")[0].write_bytes(b"broken")
    with pytest.warns(ElmoWarning, match="W200"):
        trained(begun, text, resume=True)
    assert_same_result(straight, begun)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_a_step(tmp_path, text, straight, monkeypatch, number):
    run = small_run(tmp_path / "run", text)
    set_rate = learner.set_rate

    def raise_and_set_rate(*arguments):
        if run.progress.step == 7:
            signal.raise_signal(number)
        return set_rate(*arguments)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        monkeypatch.setattr(learner, "set_rate", raise_and_set_rate)
        run.begin(resume=False)
        with pytest.raises(KeyboardInterrupt):
            run.train()
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert find_checkpoints(run.checkpoints)[0].name == "step-00000008.safetensors"
    monkeypatch.undo()
    trained(tmp_path / "run", text, resume=True)
    assert_same_result(straight, tmp_path / "run")


@pytest.mark.parametrize("where", ["counting", "reading", "evaluating", "saving", "finishing"])
def test_ctrl_c_at_any_moment(tmp_path, text, straight, monkeypatch, where):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    def reading(self, shards=None, *part, whole=Corpus.sentences):
        for number, sentence in enumerate(whole(self, shards, *part)):
            if number == 70 and (shards is None) == (where == "counting"):
                interrupt()
            yield sentence

    replaced = {
        "evaluating": (held_out, "perplexity"),
        "finishing": (loop, "save_bilm"),
        "saving": (torch.Tensor, "isfinite"),
    }
    if where in replaced:
        monkeypatch.setattr(*replaced[where], interrupt)
    else:
        monkeypatch.setattr(Corpus, "sentences", reading)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", text)
    monkeypatch.undo()
    trained(tmp_path / "run", text, resume=True)
    assert_same_result(straight, tmp_path / "run")


def test_a_signal_while_a_checkpoint_is_written_waits(tmp_path, text, straight, monkeypatch):
    import os

    sync, raised = os.fsync, []

    def sync_and_raise(descriptor):
        if not raised and (tmp_path / "run" / "checkpoints" / "begin.safetensors").exists():
            raised.append(signal.raise_signal(signal.SIGINT))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", sync_and_raise)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", text)
    monkeypatch.undo()
    assert [path.name for path in find_checkpoints(tmp_path / "run" / "checkpoints")] == ["step-00000005.safetensors"]
    trained(tmp_path / "run", text, resume=True)
    assert_same_result(straight, tmp_path / "run")


def test_a_run_is_not_begun_over_another(begun, straight, text):
    with pytest.raises(TrainingError, match="E212"):
        small_run(begun, text).begin(resume=False)
    find_checkpoints(begun / "checkpoints")[0].write_bytes(b"broken")
    with pytest.raises(TrainingError, match="E212"):
        small_run(begun, text).begin(resume=False)


def test_finished_weights_are_not_overwritten(tmp_path, straight, text):
    copy = shutil.copytree(straight, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(TrainingError, match="E212"):
        small_run(copy, text).begin(resume=False)


def test_resuming_where_nothing_is_begins(tmp_path, text, straight):
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "loss": 1.0}\n')
    trained(tmp_path, text, resume=True)
    assert_same_result(straight, tmp_path)


def test_what_is_left_open_now_and_was_decided_then_is_as_it_was(begun, text, straight):
    run = trained(begun, text, resume=True, precision="fastest", recurrence="fastest")
    assert (run.settings.precision, run.settings.recurrence) == ("float32", "steps")
    assert_same_result(straight, begun)


@pytest.mark.parametrize(
    ("name", "value"),
    [("peak_rate", 1e-3), ("seed", 9), ("epochs", 2), ("softmax", {"kind": "full"}), ("buffer_words", 299)],
)
def test_changed_settings_are_named(begun, text, name, value):
    with pytest.raises(TrainingError, match=rf"E213.*settings\.{name}'"):
        small_run(begun, text, **{name: value}).begin(resume=True)


def test_a_changed_model_is_named(begun, text):
    run = small_run(begun, text)
    run.config = BiLMConfig.from_dict({**CONFIG.to_dict(), "n_highway": 2})
    with pytest.raises(TrainingError, match=r"E213.*config\.n_highway': \(1, 2\)"):
        run.begin(resume=True)


def test_a_changed_corpus_is_named(begun, text, tmp_path):
    other = shutil.copytree(text, tmp_path / "text")
    (other / "3.txt").write_text("more\n")
    with pytest.raises(TrainingError, match=r"E213.*corpus\.shards': \(3, 4\)"):
        small_run(begun, other).begin(resume=True)


def test_other_text_of_the_same_names_and_sizes_is_named(begun, text, tmp_path):
    other = shutil.copytree(text, tmp_path / "text")
    (other / "1.txt").write_text((text / "1.txt").read_text().replace("w3", "w4"))
    with pytest.raises(TrainingError, match=r"E213.*corpus\.sha256"):
        small_run(begun, other).begin(resume=True)


def test_the_text_may_lie_elsewhere(begun, text, straight, tmp_path):
    other = shutil.copytree(text, tmp_path / "moved")
    (other / "1.txt").rename(other / "1b.txt")
    trained(begun, other, resume=True)
    assert_same_result(straight, begun)


def test_other_held_out_text_is_scored_though_the_run_is_finished(tmp_path, text, straight):
    copy = shutil.copytree(straight, tmp_path / "copy")
    for _ in range(2):
        run = small_run(copy, text)
        run.held_out.domains = {"other": [["w0", "w5"]]}
        run.begin(resume=True)
        run.train()
    before, after = metrics(straight), metrics(copy)
    assert after[:-1] == before
    assert after[-1]["step"] == before[-1]["step"] and after[-1]["perplexity_words"] == 3
    assert f"forward: {after[-1]['perplexity_forward']:.2f}" in (copy / "README.md").read_text()
    trained(copy, text, resume=True)
    assert (copy / "README.md").read_text() == (straight / "README.md").read_text()


def test_without_held_out_text_what_was_found_for_the_same_weights_stays(tmp_path, text, straight):
    copy = shutil.copytree(straight, tmp_path / "copy")
    run = small_run(copy, text)
    run.held_out.domains = {}
    run.begin(resume=True)
    run.train()
    assert_same_result(straight, copy)
    assert (copy / "README.md").read_text() == (straight / "README.md").read_text()


def test_what_earlier_weights_reached_is_not_said_of_the_last(begun, text):
    run = small_run(begun, text)
    run.held_out.domains = {}
    run.begin(resume=True)
    assert run.held_out.last.step == 10
    run.train()
    assert "Not measured" in (begun / "README.md").read_text()


def test_seconds_go_on_where_the_run_was(tmp_path, text, monkeypatch):
    monkeypatch.setattr(loop, "REPORT_EVERY", 2)
    for start, resume in ((1000.0, False), (5.0, True)):
        clock = itertools.count(start, 10.0)
        monkeypatch.setattr(loop.time, "monotonic", lambda clock=clock: next(clock))
        if resume:
            trained(tmp_path / "run", text, resume=True)
        else:
            stop_after(small_run(tmp_path / "run", text), 12)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in lines if "seconds" in line]
    steps = {b - a for a, b in zip(seconds, seconds[1:])}
    assert len(seconds) > 8 and seconds[0] > 0
    assert min(steps) >= 10.0 and max(steps) <= 60.0


def test_how_often_to_save_and_evaluate_may_change(begun, text, straight):
    trained(begun, text, resume=True, evaluate_every=1000, save_every=7)
    assert (begun / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()


def test_an_empty_corpus_leaves_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n")
    with pytest.raises(CorpusError, match="E203"):
        small_run(tmp_path / "run", tmp_path / "a.txt").begin(resume=False)
    assert list((tmp_path / "run").iterdir()) == []


def test_lines_left_out_are_counted(tmp_path):
    (tmp_path / "a.txt").write_text("a b\n\n\n" + "long " * 201 + "\n")
    small_run(tmp_path / "run", tmp_path / "a.txt").begin(resume=False)
    (line,) = metrics(tmp_path / "run")
    assert line.items() >= {"step": 0, "sentences": 3, "words": 203, "empty_lines": 2, "cut_lines": 1}.items()


def spoil(monkeypatch, run, steps, value):
    """Multiply the log-probabilities of some steps, from 1 on, by a value."""
    scores = learner.log_probabilities

    def spoilt(*arguments):
        found, state = scores(*arguments)
        return found * (value if run.progress.step + 1 in steps else 1.0), state

    monkeypatch.setattr(learner, "log_probabilities", spoilt)


def test_gradients_that_are_not_finite_are_passed_over_and_counted(tmp_path, text, monkeypatch):
    run = small_run(tmp_path / "run", text)
    spoil(monkeypatch, run, {3, 9}, math.nan)
    run.begin(resume=False)
    run.train()
    (line,) = [line for line in metrics(tmp_path / "run") if "skipped" in line]
    assert line["step"] == 20 and line["skipped"] == 2 and 2 < line["loss"] < 5
    assert run.learner.is_finite()


def test_a_step_that_is_passed_over_changes_nothing(tmp_path, text, monkeypatch):
    run = small_run(tmp_path / "run", text)
    spoil(monkeypatch, run, {1}, math.inf)
    run.begin(resume=False)
    before = [parameter.clone() for parameter in run.learner.parameters]
    stop_after(run, 1, begin=False)
    assert all(torch.equal(*pair) for pair in zip(before, run.learner.parameters))


def test_a_loss_that_leaps_takes_the_run_back_to_good_weights(tmp_path, text, monkeypatch):
    run = small_run(tmp_path / "run", text, epochs=4, spike=3.0)
    spoil(monkeypatch, run, set(range(42, 55)), 50.0)
    run.begin(resume=False)
    with pytest.warns(ElmoWarning, match="W220.*by step 60.*step 40"):
        run.train()
    lines = metrics(tmp_path / "run")
    assert [line for line in lines if "rolled_back_to" in line][0]["rolled_back_to"] == 40
    rates = {line["step"]: line["rate"] for line in lines if "rate" in line}
    assert rates[80] < 0.6 * rates[40]
    assert run.progress.rollbacks == 1 and run.held_out.last.perplexity.joint < 60


def test_a_leap_before_the_first_checkpoint_by_steps_takes_the_run_back_to_its_begin(tmp_path, text, monkeypatch):
    run = small_run(tmp_path / "run", text, epochs=4, spike=3.0, save_every=1000)
    spoil(monkeypatch, run, set(range(21, 40)), 50.0)
    run.begin(resume=False)
    begun = [parameter.clone() for parameter in run.learner.parameters]
    with pytest.warns(ElmoWarning, match="W220.*by step 40.*step 0"):
        stop_after(run, 41, begin=False)
    assert [line["rolled_back_to"] for line in metrics(tmp_path / "run") if "rolled_back_to" in line] == [0]
    parts = read_checkpoint(tmp_path / "run" / "checkpoints" / "step-00000040.safetensors").parts()
    assert "optimizer" not in parts  # nothing is left of the steps that were taken back
    run.learner.restore(parts, "the test")
    assert all(torch.equal(*pair) for pair in zip(begun, run.learner.parameters))


def test_the_loss_of_the_begin_is_no_leap_after_a_run_was_taken_back_to_it(tmp_path, text, monkeypatch):
    run = small_run(tmp_path / "run", text, epochs=10, spike=0.2, save_every=1000)
    spoil(monkeypatch, run, set(range(121, 140)), 50.0)
    run.begin(resume=False)
    with pytest.warns(ElmoWarning, match="W220.*by step 140.*step 0"):
        run.train()
    losses = {line["step"]: line["loss"] for line in metrics(tmp_path / "run") if "loss" in line}
    assert losses[160] > losses[120] + 0.2  # which is as much as a leap
    assert run.progress.rollbacks == 1


def test_what_a_run_began_with_is_kept_until_there_is_a_checkpoint_to_go_back_to(tmp_path, text):
    stop_after(small_run(tmp_path / "run", text, epochs=2, save_every=10), 7)
    assert (tmp_path / "run" / "checkpoints" / "begin.safetensors").exists()
    trained(tmp_path / "run", text, resume=True, epochs=2, save_every=10)
    assert not (tmp_path / "run" / "checkpoints" / "begin.safetensors").exists()


def test_a_run_that_was_taken_back_goes_on_the_same_after_an_interruption(tmp_path, text, monkeypatch):
    for name, stop in (("straight", None), ("resumed", 63)):
        run = small_run(tmp_path / name, text, epochs=4, spike=3.0)
        with monkeypatch.context() as patch, pytest.warns(ElmoWarning, match="W220"):
            spoil(patch, run, set(range(42, 55)), 50.0)
            if stop is None:
                run.begin(resume=False)
                run.train()
            else:
                stop_after(run, stop)
    trained(tmp_path / "resumed", text, resume=True, epochs=4, spike=3.0)
    assert_same_result(tmp_path / "straight", tmp_path / "resumed")


@pytest.mark.parametrize(("first", "rollbacks"), [(1, 5), (30, 1)])
def test_a_loss_that_stays_bad_stops_the_run(tmp_path, text, monkeypatch, first, rollbacks):
    run = small_run(tmp_path / "run", text, epochs=5, max_rollbacks=1)
    spoil(monkeypatch, run, set(range(first, 999)), math.nan)
    run.begin(resume=False)
    with warnings.catch_warnings(), pytest.raises(TrainingError, match="E214.*the loss is nan"):
        warnings.simplefilter("ignore", ElmoWarning)
        run.train()
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_weights_that_are_not_finite_are_not_saved(tmp_path, text):
    run = small_run(tmp_path / "run", text)
    run.begin(resume=False)
    run.learner.bilm.forward_lm[1].bias.data[0] = math.nan
    with pytest.raises(TrainingError, match="E214"):
        run.save_checkpoint()
    assert find_checkpoints(run.checkpoints) == []


@pytest.mark.parametrize("moment", ["vocabulary", "metrics", "weights"])
def test_a_full_disk_is_a_coded_error(tmp_path, text, straight, monkeypatch, moment):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if moment == "vocabulary":
            patch.setattr(Vocabulary, "save", full)
        elif moment == "weights":
            patch.setattr(loop, "save_head", full)
        else:
            patch.setattr("spacy_elmo.pretraining.metrics.open", full, raising=False)
        with pytest.raises(TrainingError, match="E215.*No space left"):
            trained(tmp_path / "run", text)
    trained(tmp_path / "run", text, resume=True)
    assert_same_result(straight, tmp_path / "run")


def test_a_directory_that_cannot_be(tmp_path, text):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="E218"):
        small_run(tmp_path / "file" / "run", text).begin(resume=False)
    with pytest.raises(TrainingError, match="E217"):
        small_run(text, text).begin(resume=False)
    assert sorted(path.name for path in text.iterdir()) == ["0.txt", "1.txt", "2.txt"]


def test_a_model_larger_than_all_memory_is_refused_before_the_words_are_counted(tmp_path, text):
    run = small_run(tmp_path / "run", text)
    run.config = BiLMConfig(projection=2**16, cells=2**16, n_layers=1000)
    with pytest.raises(TrainingError, match=r"E220.*[1-9],\d{3},\d{3},\d{3},\d{3} parameters.* but cpu has"):
        run.begin(resume=False)
    assert list((tmp_path / "run").iterdir()) == []


def test_only_models_over_characters_are_trained(tmp_path, text):
    run = small_run(tmp_path / "run", text)
    run.config = BiLMConfig(token_encoder="words", n_words=9)
    with pytest.raises(TrainingError, match="E222.*'words'"):
        run.begin(resume=False)


def test_one_run_at_a_time(tmp_path, text, straight):
    run = small_run(tmp_path / "run", text)
    run.begin(resume=False)
    for resume in (False, True):
        with pytest.raises(TrainingError, match="E219"):
            small_run(tmp_path / "run", text).begin(resume)
    run.train()
    assert_same_result(straight, tmp_path / "run")
    small_run(tmp_path / "run", text).begin(resume=True)


def test_a_run_goes_on_with_its_own_vocabulary_only(begun, text):
    path = begun / "vocabulary.txt.gz"
    words = Vocabulary.load(path).words
    run = small_run(begun, text)
    run._given = Vocabulary(words[:-1])
    with pytest.raises(TrainingError, match="E213.*vocabulary"):
        run.begin(resume=True)
    Vocabulary([*words[:3], *words[:2:-1]]).save(path)
    with pytest.raises(TrainingError, match="E213.*vocabulary"):
        small_run(begun, text).begin(resume=True)


def test_the_lock_is_given_back_after_an_error(begun, text):
    assert not (begun / "run.lock").exists()
    for _ in range(2):
        with pytest.raises(TrainingError, match="E212"):
            small_run(begun, text).begin(resume=False)
    assert not (begun / "run.lock").exists()


def test_the_progress_bar_goes_on_where_the_run_was(begun, text, monkeypatch):
    bars = []

    class Bar(loop.tqdm):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            bars.append(self)

    monkeypatch.setattr(loop, "tqdm", Bar)
    run = small_run(begun, text)
    run.begin(resume=True)
    done = run.progress.words
    run.train()
    assert bars[-1].initial == done > 0
    assert bars[-1].n == bars[-1].total == run.progress.words


def test_the_generators_of_torch_are_left_alone(tmp_path, text):
    before = torch.random.get_rng_state()
    trained(tmp_path / "run", text)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_without_held_out_text(tmp_path, text):
    run = small_run(tmp_path / "run", text)
    run.held_out.domains = {}
    run.begin(resume=False)
    run.train()
    assert "Not measured" in (tmp_path / "run" / "README.md").read_text()


def test_bfloat16_trains(tmp_path, text, straight):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = trained(tmp_path / "run", text, precision="bfloat16")
    exact = metrics(straight)[-1]["perplexity_joint"]
    assert run.held_out.last.perplexity.joint == pytest.approx(exact, rel=0.05)
    assert all(parameter.dtype == torch.float32 for parameter in run.learner.parameters)


def test_a_compiled_recurrence_trains_and_goes_on_where_it_was(tmp_path, text, straight):
    pytest.importorskip("numba")
    run = trained(tmp_path / "run", text, recurrence="compiled")
    exact = metrics(straight)[-1]["perplexity_joint"]
    assert run.held_out.last.perplexity.joint == pytest.approx(exact, rel=1e-3)
    stop_after(small_run(tmp_path / "again", text, recurrence="compiled"), 12)
    trained(tmp_path / "again", text, resume=True, recurrence="compiled")
    assert_same_result(tmp_path / "run", tmp_path / "again")


def test_where_nothing_can_be_compiled_such_a_run_goes_on_step_by_step(tmp_path, text, straight, monkeypatch):
    pytest.importorskip("numba")
    stop_after(small_run(tmp_path / "run", text, recurrence="compiled"), 12)
    without_numba(monkeypatch)
    with pytest.warns(ElmoWarning, match="W221.*numba"):
        run = trained(tmp_path / "run", text, resume=True, recurrence="compiled")
    assert run.settings.recurrence == "steps"
    assert read_checkpoint(find_checkpoints(run.checkpoints)[0]).progress["chosen"]["recurrence"] == "compiled"
    exact = metrics(straight)[-1]["perplexity_joint"]
    assert run.held_out.last.perplexity.joint == pytest.approx(exact, rel=1e-3)
    assert [line["environment"]["numba"] for line in metrics(tmp_path / "run") if "environment" in line][1:] == [None]


def test_a_compiled_recurrence_needs_a_compiler(tmp_path, text, monkeypatch):
    without_numba(monkeypatch)
    with pytest.raises(ConfigError, match="E026"):
        trained(tmp_path / "run", text, recurrence="compiled")
    assert not (tmp_path / "run" / "vocabulary.txt.gz").exists()  # no words were counted for nothing


def test_a_small_text_is_learnt_by_heart(tmp_path, fixtures_dir):
    """The check that bilm-tf's own tests make."""
    shards = find_shards([fixtures_dir / "bilm-tf" / "train" / "data.txt"])
    config = BiLMConfig.from_dict({**CONFIG.to_dict(), "projection": 32, "cells": 48})
    softmax = {"kind": "full"}
    settings = TrainingSettings(
        epochs=60, batch_words=500, peak_rate=0.03, warmup_steps=5, dropout=0.0, min_count=1, softmax=softmax
    )
    run = Run(tmp_path, config, settings, shards, {"other": list(Corpus(shards).sentences())}, torch.device("cpu"))
    run.begin(resume=False)
    assert run.evaluate().joint > 50
    run.train()
    found = run.held_out.last.perplexity
    assert found.forward < 20 and found.backward < 20


def test_a_finished_model_without_checkpoints_is_not_replaced(tmp_path: Path) -> None:
    text = write_corpus(tmp_path / "text")
    run = trained(tmp_path / "run", text)
    before = (run.directory / "model.safetensors").read_bytes()
    shutil.rmtree(run.checkpoints)
    with pytest.raises(TrainingError, match="E212"):
        small_run(tmp_path / "run", text).begin(resume=True)
    assert (run.directory / "model.safetensors").read_bytes() == before
