"""spaCy's own commands, on configs and pipelines with ELMo: in this process, and with --slow as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import spacy
from spacy import util
from spacy.cli._util import app
from spacy.tokens import DocBin
from thinc.api import Config
from typer.testing import CliRunner

import spacy_elmo.cli  # noqa: F401
from spacy_elmo.cli.init_config import LISTENER_DROPOUT
from spacy_elmo.pipeline.mixes import layer_mixes
from tests.cli.labelled_docs import write_docs
from tests.installed import installed_environment

SMALL = ["--training.max_steps", 4, "--training.eval_frequency", 2]

Run = Callable[..., str]


def run_here(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result.output


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return installed_environment(tmp_path_factory.mktemp("installed"))


@pytest.fixture(params=["here", pytest.param("process", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest) -> Run:
    if request.param == "here":
        return run_here
    environment = request.getfixturevalue("environment")

    def run_process(*arguments: object) -> str:
        command = [sys.executable, "-m", "spacy", *(str(argument) for argument in arguments)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
        assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
        return result.stdout

    return run_process


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has docs.spacy and small.cfg, a config made by init-config, with smaller encoders."""
    directory = tmp_path_factory.mktemp("commands")
    write_docs(directory / "docs.spacy")
    run_here("elmo", "init-config", directory / "full.cfg", "-p", "tagger,ner,textcat_multilabel")
    config = util.load_config(directory / "full.cfg")
    config["paths"].update(train=str(directory / "docs.spacy"), dev=str(directory / "docs.spacy"))
    for name in ("tagger", "ner", "textcat_multilabel"):
        config["components"][name]["model"]["tok2vec"]["encode"].update(width=16, depth=1)
    config.to_disk(directory / "small.cfg")
    return directory


@pytest.fixture(scope="module")
def model(directory: Path) -> Path:
    """A trained pipeline."""
    run_here("train", directory / "small.cfg", "--output", directory / "output", *SMALL)
    return directory / "output" / "model-last"


def test_train(run: Run, directory: Path, tmp_path: Path) -> None:
    run("train", directory / "small.cfg", "--output", tmp_path, *SMALL)
    for name in ("model-best", "model-last"):
        nlp = spacy.load(tmp_path / name)
        assert nlp.pipe_names == ["elmo", "tagger", "ner", "textcat_multilabel"]
        assert [mix.place for mix in layer_mixes(nlp)] == ["input"] * 3


def test_fill_config(run: Run, directory: Path, tmp_path: Path) -> None:
    partial = util.load_config(directory / "full.cfg")
    for listener in ("tagger", "ner"):
        partial["components"][listener]["model"]["tok2vec"]["elmo_input"] = {
            "@architectures": "spacy_elmo.ElmoListener.v1",
            "dropout": LISTENER_DROPOUT,
        }
    partial["components"]["elmo"] = {"factory": "elmo"}
    partial.to_disk(tmp_path / "partial.cfg")
    run("init", "fill-config", tmp_path / "partial.cfg", tmp_path / "filled.cfg")
    assert util.load_config(tmp_path / "filled.cfg") == util.load_config(directory / "full.cfg")


def test_debug_config(run: Run, directory: Path) -> None:
    assert "Config is valid" in run("debug", "config", directory / "small.cfg")


def test_debug_data(run: Run, directory: Path, tmp_path: Path) -> None:
    # spaCy is not content with less.
    data = write_docs(tmp_path / "docs.spacy", n_docs=100)
    output = run("debug", "data", directory / "small.cfg", "--paths.train", data, "--paths.dev", data)
    assert "Training pipeline: elmo, tagger, ner, textcat_multilabel" in output


def test_evaluate(run: Run, model: Path, directory: Path, tmp_path: Path) -> None:
    run("evaluate", model, directory / "docs.spacy", "--output", tmp_path / "scores.json")
    scores = json.loads((tmp_path / "scores.json").read_text())
    trained = json.loads((model / "meta.json").read_text())["performance"]
    assert scores["tag_acc"] == pytest.approx(trained["tag_acc"], abs=0.3) and scores["ents_f"] is not None


def test_apply(run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("Anna visited Paris.\n", encoding="utf-8")
    run("apply", model, tmp_path / "texts.txt", tmp_path / "docs.spacy")
    docs = list(DocBin().from_disk(tmp_path / "docs.spacy").get_docs(spacy.blank("en").vocab))
    assert docs[0].has_annotation("TAG") and docs[0].text.startswith("Anna")


def test_benchmark_speed(run: Run, model: Path, directory: Path) -> None:
    output = run(
        "benchmark", "speed", model, directory / "docs.spacy", "--batches", 30, "--batch-size", 3, "--warmup", 1
    )
    assert "words/s" in output


def test_find_threshold(run: Run, model: Path, directory: Path) -> None:
    data = directory / "docs.spacy"
    output = run("find-threshold", model, data, "textcat_multilabel", "threshold", "cats_macro_f", "--n_trials", 3)
    assert "threshold" in output.lower()


def test_assemble(run: Run, model: Path, tmp_path: Path) -> None:
    source = {"source": str(model)}
    base = {"nlp": {"lang": "en", "pipeline": ["elmo", "ner"]}, "components": {"elmo": source, "ner": source}}
    Config(base).to_disk(tmp_path / "assembled.cfg")
    run("init", "fill-config", tmp_path / "assembled.cfg", tmp_path / "filled.cfg")
    run("assemble", tmp_path / "filled.cfg", tmp_path / "assembled")
    text = "Anna visited Paris. The banks paid Tom."
    nlp, original = spacy.load(tmp_path / "assembled"), spacy.load(model)
    assert [ent.text for ent in nlp(text).ents] == [ent.text for ent in original(text).ents]


def test_package(run: Run, model: Path, tmp_path: Path) -> None:
    run("package", model, tmp_path, "--build", "none", "--name", "elmo_test", "--version", "1.2.3")
    package = tmp_path / "en_elmo_test-1.2.3" / "en_elmo_test" / "en_elmo_test-1.2.3"
    assert spacy.load(package).pipe_names == ["elmo", "tagger", "ner", "textcat_multilabel"]


@pytest.mark.slow
def test_package_can_be_installed(model: Path, environment: dict[str, str], tmp_path: Path) -> None:
    python = [sys.executable, "-m"]
    command = [*python, "spacy", "package", str(model), str(tmp_path), "--build", "sdist", "--name", "elmo_test"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*/dist/*.tar.gz")
    target = tmp_path / "site-packages"
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    subprocess.run([*python, "pip", "install", "-q", *options, str(archive)], check=True, capture_output=True)
    path = os.pathsep.join([str(target), environment["PYTHONPATH"]])
    code = "import en_elmo_test; nlp = en_elmo_test.load(); print(nlp.pipe_names, nlp('Anna')[0].tag_)"
    result = subprocess.run(
        [sys.executable, "-c", code], env={**environment, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert "['elmo', 'tagger', 'ner', 'textcat_multilabel']" in result.stdout, result.stderr
    meta = json.loads(next(target.glob("en_elmo_test/en_elmo_test-*/meta.json")).read_text())
    assert any(requirement.startswith("spacy-elmo") for requirement in meta["requirements"])
