"""`python -m spacy_elmo.pretraining`, and `python -m spacy elmo pretrain`, which is the same."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from spacy_elmo.errors import ElmoError
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.pretraining.__main__ import build_parser, main, read_recipe
from spacy_elmo.pretraining.batches import Position
from spacy_elmo.pretraining.loop import Run
from spacy_elmo.pretraining.objective import Batch
from spacy_elmo.pretraining.run_directory import RunLock
from spacy_elmo.pretraining.settings import TrainingSettings
from spacy_elmo.weights.formats import load_model
from spacy_elmo.weights.native import load_bilm, load_head
from tests.cli.conftest import Command

TINY_BILM = ["--character-dim=4", "--filters=[[1, 4], [2, 8]]", "--max-characters=10", "--projection=8", "--cells=16"]
TINY = [*TINY_BILM, "--n-highway=1", "--batch-words=40", "--warmup-steps=2", "--min-count=1"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the bank of the river\n\nthe bank lends money\n" * 20, encoding="utf-8")
    return path


def settings_of(*arguments: str) -> tuple[BiLMConfig, TrainingSettings]:
    recipe = read_recipe(build_parser("p").parse_args(["x", "--output", "y", *arguments]))
    return recipe.config, recipe.settings


def test_weights_of_a_run(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "run"
    assert main([str(corpus), "--output", str(output), "--held-out", str(corpus), *TINY]) == 0
    assert load_bilm(output)([["any", "words"]]).layers.shape == (2, 3, 16)
    assert load_head(output).settings["n_words"] == 9
    assert "forward" in (output / "README.md").read_text(encoding="utf-8")
    assert "left out: 20 empty lines" in capsys.readouterr().err


def test_spacy_command_trains_the_same_weights(corpus: Path, tmp_path: Path, spacy_command: Command) -> None:
    options = [str(corpus), *TINY, "--seed=3"]
    assert main([*options, "--output", str(tmp_path / "plain")]) == 0
    result = spacy_command("elmo", "pretrain", *options, "--output", tmp_path / "spacy")
    assert result.exit_code == 0, result.output
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "spacy")]
    assert weights[0] == weights[1]


def test_spacy_command_shows_the_options(spacy_command: Command) -> None:
    result = spacy_command("elmo", "pretrain", "--help")
    assert result.exit_code == 0
    assert "python -m spacy elmo pretrain" in result.output and "--warmup-steps" in result.output


def test_every_setting_has_an_option_that_says_what_it_does() -> None:
    actions = {action.dest: action for action in build_parser("p")._actions}
    of_other_models = {"token_encoder", "n_words", "word_dim", "n_characters"}
    names = {setting.name for setting in [*fields(BiLMConfig), *fields(TrainingSettings)]}
    assert names - actions.keys() == of_other_models
    for name in names - of_other_models:
        assert len(str(actions[name].help).split(" (default: ")[0]) > 5, name


def test_interrupt_saves_and_resume_ends_as_if_nothing_had_been(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main([str(corpus), "--output", str(whole), *TINY]) == 0
    step = Run._train_step

    def interrupted(self: Run, position: Position, batches: dict[int, Batch]) -> int:
        if self.progress.step == 2:
            raise KeyboardInterrupt
        return step(self, position, batches)

    monkeypatch.setattr(Run, "_train_step", interrupted)
    assert main([str(corpus), "--output", str(broken), *TINY]) == 130
    message = capsys.readouterr().err
    assert "step-00000002.safetensors is saved" in message and "--resume" in message
    monkeypatch.undo()
    assert main([str(corpus), "--output", str(broken), "--resume", *TINY]) == 0
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_interrupt_before_the_first_step(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: Run, resume: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "begin", interrupted)
    assert main([str(corpus), "--output", str(tmp_path / "run"), *TINY]) == 130
    assert "no step was saved yet" in capsys.readouterr().err


def test_run_that_is_there_is_not_overwritten(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(corpus), "--output", str(tmp_path / "run"), *TINY]
    assert main(arguments) == 0
    assert main(arguments) == 1
    assert "[ELMO-E212]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, content, code, detail",
    [
        ("a.txt", b"ok\n\xff\xfe\n", "E202", "line 2"),
        ("a.txt.gz", gzip.compress(b"the bank\n" * 999)[:-20], "E201", "a.txt.gz"),
        ("a.txt", b"\n\n", "E203", "a.txt"),
        ("other.txt", b"", "E200", "a.txt"),
    ],
)
def test_corpus_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, code: str, detail: str
) -> None:
    (tmp_path / name).write_bytes(content)
    asked = tmp_path / (name if name != "other.txt" else "a.txt")
    assert main([str(asked), "--output", str(tmp_path / "run"), *TINY]) == 1
    message = capsys.readouterr().err
    assert f"[ELMO-{code}]" in message and detail in message


def test_empty_held_out_text(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").touch()
    held_out = ["--held-out", str(tmp_path / "empty.txt")]
    assert main([str(corpus), "--output", str(tmp_path / "run"), *held_out, *TINY]) == 1
    assert "[ELMO-E203]" in capsys.readouterr().err


def test_output_that_is_a_file(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(corpus), "--output", str(corpus), *TINY]) == 1
    assert main([str(corpus), "--output", str(corpus / "run"), *TINY]) == 1
    assert capsys.readouterr().err.count("[ELMO-E218]") == 2


def test_output_among_the_text(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(corpus.parent), "--output", str(tmp_path), *TINY]) == 1
    assert "[ELMO-E217]" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_pattern_that_leads_to_the_output_too(corpus: Path, tmp_path: Path) -> None:
    """What the run wrote is neither read by it nor in the way of going on."""
    pattern = f"{tmp_path}/**/*.*"
    arguments = [pattern, "--held-out", pattern, "--output", str(tmp_path / "run"), *TINY]
    assert main(arguments) == 0
    before = (tmp_path / "run" / "README.md").read_bytes()
    assert main([*arguments, "--resume"]) == 0
    assert (tmp_path / "run" / "README.md").read_bytes() == before
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["sentences"] == 40


def test_a_corpus_of_the_same_name_and_size_is_another(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(corpus), "--output", str(tmp_path / "run"), *TINY]
    assert main(arguments) == 0
    corpus.write_text(corpus.read_text(encoding="utf-8").replace("money", "honey"), encoding="utf-8")
    assert main([*arguments, "--resume"]) == 1
    message = capsys.readouterr().err
    assert "[ELMO-E213]" in message and "corpus.sha256" in message


def test_how_the_text_is_read_is_a_setting_of_the_run(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(corpus), "--output", str(tmp_path / "run"), *TINY, "--max-words=3", "--buffer-words=20"]
    assert main(arguments) == 0
    assert "cut: 40 lines longer than 3 words" in capsys.readouterr().err
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "- max_words: 3" in card and "- buffer_words: 20" in card
    assert main([*arguments, "--max-words=4", "--resume"]) == 1
    assert "'settings.max_words': (3, 4)" in capsys.readouterr().err


def test_two_processes_in_one_directory(corpus: Path, tmp_path: Path) -> None:
    """The second is refused as long as the first is alive, however it ends."""
    pytest.importorskip("fcntl")
    arguments = ["-m", "spacy_elmo.pretraining", str(corpus), "--output", str(tmp_path / "run"), *TINY]
    source = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)}
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    first = subprocess.Popen([sys.executable, *arguments, "--epochs=1000000"], env=environment, text=True, **streams)
    try:
        assert first.stderr is not None
        while "parameters" not in (line := first.stderr.readline()):
            assert line, "the first process ended"
        second = subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120
        )
        assert second.returncode == 1
        assert f"[ELMO-E219] Another run is at work in {tmp_path / 'run'}: process {first.pid} on" in second.stderr
        assert "Traceback" not in second.stderr
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    assert (tmp_path / "run" / "run.lock").exists()
    RunLock(tmp_path / "run").acquire()


def test_missing_gpu(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([str(corpus), "--output", str(tmp_path / "run"), "--gpu-id", "0", *TINY]) == 1
    assert "[ELMO-E412]" in capsys.readouterr().err


def test_options_go_before_the_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"bilm": {"cells": 7, "n_layers": 1}, "training": {"peak_rate": 1, "seed": 5}}))
    options = [
        "--cells",
        "9",
        "--precision=bfloat16",
        "--cell-clip",
        "none",
        "--no-skip-connections",
        "--buffer-words=7",
    ]
    bilm, training = settings_of("--config", str(path), *options)
    assert bilm == BiLMConfig(cells=9, n_layers=1, cell_clip=None, skip_connections=False)
    assert training == TrainingSettings(peak_rate=1, seed=5, precision="bfloat16", buffer_words=7)


def test_config_of_weights_may_be_used(source: Path) -> None:
    assert settings_of("--config", str(source / "config.json"))[0] == load_bilm(source).config


@pytest.mark.parametrize(
    "content, code",
    [
        ("{", "E410"),
        ("[]", "E410"),
        ("{}", "E410"),
        ('{"bilm": 3}', "E410"),
        ('{"bilm": {}, "model": {}}', "E410"),
        ('{"bilm": {"cell": 3}}', "E002"),
        ('{"bilm": {"cells": 0}}', "E001"),
        ('{"bilm": {"cells": 65537}}', "E001"),
        ('{"bilm": {"n_layers": 1000000000000}}', "E001"),
        ('{"bilm": {"n_highway": 1001}}', "E001"),
        ('{"bilm": {"max_characters": 10001}}', "E001"),
        ('{"bilm": {"filters": [[1, 65536], [2, 1]]}}', "E001.*'filters'.*at most 65536 filters together"),
        ('{"bilm": {"cell_clip": 1e300}}', "E001"),
        ('{"training": {"sead": 3}}', "E221"),
        ('{"training": {"epochs": "3"}}', "E216"),
        ('{"training": {"precision": 1}}', "E216"),
        ('{"training": {"precision": ["float32"]}}', "E216"),
        ('{"training": {"variational_dropout": 1}}', "E216"),
        ('{"training": {"bfloat16": true}}', "E221"),
        ('{"training": {"softmax": ' + "[" * 100_000, "E410.*nested too deeply"),
    ],
)
def test_config_that_cannot_be(tmp_path: Path, content: str, code: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ElmoError, match=code):
        settings_of("--config", str(path))


def test_the_largest_bilm_that_may_be() -> None:
    largest = BiLMConfig(2**16, ((1, 2**15), (9, 2**15)), 10_000, "relu", 1000, 2**16, 2**16, 1000, True, 1e9, 1e9)
    assert BiLMConfig.from_dict(largest.to_dict()) == largest


@pytest.mark.parametrize("depth", range(100, 1001, 100))
def test_what_is_nested_deeply_on_the_command_line(depth: int) -> None:
    """Python reads some depths that it cannot show."""
    value = "[" * depth + "]" * depth
    with pytest.raises((ElmoError, SystemExit), match="E410|E216|2"):
        settings_of(f"--softmax={value}")


@pytest.mark.parametrize(
    "arguments, code",
    [
        (["--threads=0"], "E411"),
        (["--threads=1000000000000"], "E411"),
        (["--seed=9223372036854775808"], "E216"),
        (["--batch-words=99999999999999999999"], "E216"),
        (["--max-words=0"], "E216"),
        (['--softmax={"kind": "adaptive", "cutoffs": "abc"}'], "E216"),
        (['--softmax={"kind": "adaptive", "cutoffs": 100}'], "E216"),
        (['--softmax={"kind": "full", "foo": 1}'], "E216"),
        (["--softmax=3"], "E216"),
        (["--cells=10000000000"], "E001"),
        (["--cells=65536", "--projection=65535", "--n-layers=1000"], "E220"),
        (["--filters=[[1, 100000]]"], "E001"),
    ],
)
def test_what_cannot_be_is_said_before_the_words_are_counted(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: str
) -> None:
    output = tmp_path / "run"
    assert main([str(corpus), "--output", str(output), *TINY, *arguments]) == 1
    printed = capsys.readouterr()
    assert f"[ELMO-{code}]" in printed.err and "counting" not in printed.err
    assert ".." not in printed.err
    assert not output.exists() or list(output.iterdir()) == []


def test_empty_name_of_the_output_is_refused(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(corpus), "--output", "", *TINY])
    assert ended.value.code == 2 and "the name is empty" in capsys.readouterr().err


# Options.


def test_config_goes_before_the_preset_and_options_before_both(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"bilm": {"cells": 7}, "training": {"peak_rate": 1, "softmax": {"kind": "full"}}}))
    bilm, training = settings_of("--preset=elmo-2018", "--config", str(path), "--peak-rate=2", "--projection=4")
    assert (bilm.cells, bilm.projection, bilm.n_highway) == (7, 4, 2)
    assert (training.peak_rate, training.softmax, training.loss_scale) == (2, {"kind": "full"}, 20)
    assert (bilm.initial_state, training.optimizer) == ("canonical", "adagrad")


def test_the_help_fits_and_is_grouped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) < 260
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == [
        *("positional arguments:", "options:", "the biLM:", "how the text is read:", "how it learns:", "the softmax:"),
        *("speed:", "the course of the run:"),
    ]
    text = " ".join(" ".join(lines).split())
    assert "Highest learning rate. (default: 0.004)" in text and '"sentences" (default' not in text
    assert "down to 2 % of the peak" in text and "--tokenizer" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["--held-ou", "x"],
        ["--preset", "large"],
        ["--bf16"],
        ["--precision", "bf16"],
        ["--filters", "[[1, 4]"],
        ["--filters", ""],
        ["--cells", "4.5"],
        ["--cell-clip", "never"],
        ["--gpu-id", "zero"],
        ["--init-from", " "],
        ["--vocabulary", ""],
        ["--config", ""],
        ["--held-out", ""],
        ["--tokenizer", "en"],
        [""],
    ],
)
def test_options_that_argparse_refuses(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["x", "--output", str(tmp_path / "run"), *arguments])
    assert ended.value.code == 2 and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--peak-rate=nan"], "E216"),
        (["--peak-rate=-1"], "E216"),
        (["--dropout=1"], "E216"),
        (["--save-minutes=inf"], "E216"),
        (['--softmax={"kind": "sampled", "n_samples": NaN}'], "E216"),
        (["--cell-clip=nan"], "E001"),
        (["--max-characters=2"], "E001"),
        (["--recurrence=fused"], "E020"),
        (["--gpu-id=99999999999999999999"], "E412"),
        (["--vocabulary=missing.txt"], "E120"),
        (["--init-from=/missing/model"], "E416"),
        (["--held-out=missing.txt"], "E200"),
        (["--held-out=news=missing.txt"], "E200"),
        (["--held-out==text.txt"], "E411"),
        (["--held-out=news="], "E411"),
        (["--held-out=-"], "E411"),
        (["--held-out=news=-"], "E411"),
        (["--held-out=" + "x" * 300], "E201"),
        (["--held-out=a\0b"], "E200"),
    ],
)
def test_nonsense_is_named(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: str
) -> None:
    assert main([str(corpus), "--output", str(tmp_path / "run"), *TINY, *arguments]) == 1
    printed = capsys.readouterr().err
    assert f"[ELMO-{code}]" in printed and "Traceback" not in printed and len(printed) < 2500
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(("source", "code"), [("x" * 300, "E201"), ("a\0b", "E200"), ("*.text", "E200")])
def test_nonsense_as_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, code: str) -> None:
    assert main([source, "--output", str(tmp_path / "run"), *TINY]) == 1
    assert f"[ELMO-{code}]" in capsys.readouterr().err


def test_domains_of_held_out_text(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b.txt").write_text("the money of the bank\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "c=d.txt").write_text("the river\n")
    held_out = ["news=text.txt", "a=b.txt", "more/c=*.txt", "news=./a=b.txt"]
    options = [option for source in held_out for option in ("--held-out", source)]
    assert main([str(corpus), "--output", "run", *options, *TINY]) == 0
    lines = [json.loads(line) for line in Path("run", "metrics.jsonl").read_text().splitlines()]
    words = {name: value for name, value in lines[-1].items() if name.startswith("perplexity_words")}
    # 240 words and 40 ends, 5 and 1 of a=b.txt; that file, and 2 and 1 of c=d.txt.
    in_news = 180 + 40 + 6
    assert words == {
        "perplexity_words": in_news + 9,
        "perplexity_words:news": in_news,
        "perplexity_words:other": 9,
    }


# Text that is kept.


class Stdin:
    def __init__(self, text: str) -> None:
        self.buffer = io.BytesIO(text.encode("utf-8"))


def test_standard_input_is_kept_to_go_on(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = tmp_path / "more.txt"
    more.write_text("a rare word\n" * 5)
    arguments = [str(more), "-", *TINY, "--held-out", str(corpus)]
    assert main([str(more), str(corpus), *arguments[2:], "--output", str(tmp_path / "files")]) == 0
    monkeypatch.setattr(sys, "stdin", Stdin(corpus.read_text()))
    assert main([*arguments, "--output", str(tmp_path / "run")]) == 0
    assert (tmp_path / "files" / "model.safetensors").read_bytes() == (
        tmp_path / "run" / "model.safetensors"
    ).read_bytes()
    monkeypatch.setattr(sys, "stdin", Stdin("other text"))
    assert main([*arguments, "--output", str(tmp_path / "run"), "--resume"]) == 0
    assert sys.stdin.buffer.read() == b"other text"
    capsys.readouterr()
    assert main([*arguments, "--output", str(tmp_path / "run")]) == 1
    assert "[ELMO-E212]" in capsys.readouterr().err
    assert sys.stdin.buffer.read() == b""
    kept = tmp_path / "run" / "text-of-run" / "standard-input.txt.gz"
    assert gzip.decompress(kept.read_bytes()).decode() == corpus.read_text()


def test_standard_input_is_not_read_while_another_run_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fcntl")
    (tmp_path / "run").mkdir()
    lock = RunLock(tmp_path / "run")
    lock.acquire()
    monkeypatch.setattr(sys, "stdin", Stdin("some text"))
    assert main(["-", "--output", str(tmp_path / "run"), *TINY]) == 1
    assert "[ELMO-E219]" in capsys.readouterr().err
    assert sys.stdin.buffer.read() == b"some text"
    lock.release()


@pytest.mark.parametrize(("stdin", "code"), [(None, "E288"), (Stdin("\n \n"), "E203"), (Stdin("a\0b"), "E241")])
def test_standard_input_that_is_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stdin: Stdin | None,
    code: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["-", "--output", str(tmp_path / "run"), *TINY]) == 1
    assert f"[ELMO-{code}]" in capsys.readouterr().err


def write_raw(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


RAW = ["The bank lends money. It's on the river!", "Don't swim in the river."] * 10
SPLIT = "The bank lends money .\nIt 's on the river !\nDo n't swim in the river .\n" * 10


def test_raw_text_is_split_first(tmp_path: Path, spacy_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = write_raw(tmp_path / "raw.jsonl", RAW)
    split, other = tmp_path / "split.txt", tmp_path / "other.txt"
    split.write_text(SPLIT)
    other.write_text("more text\n" * 5)
    assert main([str(other), str(split), "--held-out", f"x={split}", "--output", str(tmp_path / "plain"), *TINY]) == 0
    arguments = [raw, other, "--held-out", f"x={raw}", "--output", tmp_path / "run", *TINY, "--tokenizer", "en"]
    result = spacy_command("elmo", "pretrain", *arguments)
    assert result.exit_code == 0, result.output
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "run")]
    assert weights[0] == weights[1]
    last = [json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1]) for name in ("plain", "run")]
    assert last[0]["held_out"] == last[1]["held_out"]
    again = spacy_command("elmo", "pretrain", *arguments, "--resume")
    assert again.exit_code == 0, again.output
    raw.write_text(raw.read_text() + '{"text": "More."}\n')
    changed = spacy_command("elmo", "pretrain", *arguments, "--resume")
    assert changed.exit_code == 1 and "[ELMO-E421]" in changed.output


def test_raw_lines_of_files_and_of_standard_input(tmp_path: Path, spacy_command: Command) -> None:
    split = tmp_path / "split.txt"
    split.write_text(SPLIT)
    assert main([str(split), "--output", str(tmp_path / "plain"), *TINY]) == 0
    arguments = ["-", "--output", tmp_path / "run", *TINY, "--tokenizer", "en", "--plain-text"]
    raw = "".join(f"{text}\n" for text in RAW).encode()
    result = spacy_command("elmo", "pretrain", *arguments, stdin=raw)
    assert result.exit_code == 0, result.output
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "run")]
    assert weights[0] == weights[1]
    assert spacy_command("elmo", "pretrain", *arguments, "--resume").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--tokenizer", "en"], "E420"),
        (["--tokenizer", "qq", "--plain-text"], "E415"),
        (["--tokenizer", "no_such_pipeline", "--plain-text"], "E408"),
        (["--tokenizer", "en", "--plain-text", "--n-process", "0"], "E411"),
        (["--plain-text"], "E411"),
    ],
)
def test_tokenizers_that_cannot_be(
    corpus: Path, tmp_path: Path, spacy_command: Command, arguments: list[str], code: str
) -> None:
    result = spacy_command("elmo", "pretrain", corpus, "--output", tmp_path / "run", *TINY, *arguments)
    assert result.exit_code == 1 and f"[ELMO-{code}]" in result.output, result.output


def test_raw_text_without_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = write_raw(tmp_path / "raw.jsonl", RAW)
    assert main([str(raw), "--output", str(tmp_path / "run"), *TINY]) == 1
    message = capsys.readouterr().err
    assert "[ELMO-E243]" in message and "pretrain --tokenizer" in message


def test_text_beside_the_run_is_not_taken_for_its_own(tmp_path: Path) -> None:
    """A run keeps text in directories of names of their own, so that one called "text" is yours."""
    (tmp_path / "run" / "text").mkdir(parents=True)
    (tmp_path / "run" / "text" / "a.txt").write_text("the bank of the river\n" * 20)
    assert main([str(tmp_path / "run" / "text"), "--output", str(tmp_path / "run"), *TINY]) == 0


# What comes of a model that was gone on with.


def test_a_model_that_was_gone_on_with_is_converted_and_assembled(
    corpus: Path, tmp_path: Path, spacy_command: Command
) -> None:
    pytest.importorskip("h5py")
    import spacy

    first, second = tmp_path / "first", tmp_path / "second"
    assert main([str(corpus), "--output", str(first), *TINY, '--softmax={"kind": "full"}']) == 0
    arguments = [corpus, "--init-from", first, "--output", second, "--batch-words=40", "--held-out", corpus]
    assert spacy_command("elmo", "pretrain", *arguments).exit_code == 0
    result = spacy_command("elmo", "convert", second, tmp_path / "hdf5", "--format", "bilm-hdf5")
    assert result.exit_code == 0, result.output
    expected = load_bilm(second)([["the", "bank"]]).layers
    pair = load_model(f"{tmp_path}/hdf5/options.json::{tmp_path}/hdf5/weights.hdf5", initial_state="zero").bilm
    assert torch.equal(pair([["the", "bank"]]).layers, expected)
    result = spacy_command("elmo", "assemble", second, tmp_path / "pipeline", "--lang", "en")
    assert result.exit_code == 0, result.output
    nlp = spacy.load(tmp_path / "pipeline")
    assert nlp("the bank")[1]._.elmo.shape == (16,)
    assert "begun from the weights of: first" in (tmp_path / "pipeline" / "README.md").read_text(encoding="utf-8")


def test_the_plain_command_needs_neither_spacy_nor_thinc() -> None:
    code = (
        "import sys\n"
        "class NotInstalled:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('spacy', 'thinc'):\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, NotInstalled())\n"
        "from spacy_elmo.pretraining.__main__ import main\n"
        "main(['--help'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "") and "--init-from" in done.stdout
