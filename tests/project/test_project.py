"""The project: its texts, its configs, its scripts, and that a command which produced nothing fails."""

from __future__ import annotations

import gzip
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import spacy
from spacy import util
from spacy.cli.project.run import project_run
from weasel.util.config import load_project_config

from spacy_elmo.pipeline.mixes import LayerMix
from tests.installed import installed_environment

PROJECT = Path(__file__).resolve().parents[2] / "project"
CONFIGS = ["ner", "tagger", "ner_baseline", "tagger_baseline"]


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PROJECT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


convert = load_script("convert")
compare = load_script("compare")
make_configs = load_script("make_configs")
write_labelled = load_script("write_labelled")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy, as in a fresh clone."""
    return Path(shutil.copytree(PROJECT, tmp_path / "project", ignore=shutil.ignore_patterns("training", "*.lock")))


@pytest.fixture(scope="module")
def commands() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load_project_config(PROJECT)["commands"]
    return found


def test_every_command_checks_what_it_has_to_produce(commands: list[dict[str, Any]]):
    for command in commands:
        checked = [line.split()[2:] for line in command["script"] if "check_outputs.py" in line]
        if outputs := command.get("outputs", []):
            assert command["script"][-1].startswith("python scripts/check_outputs.py")
            assert checked == [outputs], command["name"]


def test_every_command_runs_on_the_gpu_that_is_asked_for(commands: list[dict[str, Any]]):
    lines = [line for command in commands for line in command["script"]]
    heavy = r"python (-m spacy (train|evaluate)|-m spacy_elmo.pretraining|scripts/learning_curves)"
    on_gpu = [line for line in lines if re.match(heavy, line)]
    assert len(on_gpu) == 15 and all("--gpu-id -1" in line for line in on_gpu)


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_are_those_of_this_version(name: str, tmp_path: Path):
    make_configs.write_configs(tmp_path)
    assert (PROJECT / "configs" / f"{name}.cfg").read_text() == (tmp_path / f"{name}.cfg").read_text()


@pytest.mark.parametrize("task", ["ner", "tagger"])
def test_baseline_differs_by_elmo_alone(task: str):
    elmo, baseline = (util.load_config(PROJECT / "configs" / f"{name}.cfg") for name in (task, f"{task}_baseline"))
    assert baseline["nlp"]["pipeline"] == [task] and elmo["nlp"]["pipeline"] == ["elmo", task]
    assert baseline["training"] == elmo["training"]
    models = [config["components"][task]["model"] for config in (elmo, baseline)]
    tok2vecs = [model.pop("tok2vec") for model in models]
    assert models[0] == models[1]
    assert all(tok2vecs[0][part] == tok2vecs[1][part] for part in ("embed", "encode"))


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_labelled_text_is_what_the_templates_give(split: str, tmp_path: Path):
    write_labelled.write_labelled(PROJECT / "assets" / "templates.txt", tmp_path)
    labelled = PROJECT / "assets" / "labelled"
    assert (tmp_path / f"{split}.conllu").read_bytes() == (labelled / f"{split}.conllu").read_bytes()


@pytest.mark.parametrize(("split", "size"), [("train", 300), ("dev", 100), ("test", 100)])
def test_labelled_text_is_complete(split: str, size: int):
    docs = convert.read_docs(PROJECT / "assets" / "labelled" / f"{split}.conllu")
    assert len(docs) == len({doc.text for doc in docs}) == size
    assert all(token.pos_ and token.tag_ == token.pos_ for doc in docs for token in doc)
    assert {ent.label_ for doc in docs for ent in doc.ents} == {"PER", "LOC", "ORG"}
    assert all(len(list(doc.sents)) == 1 for doc in docs)


def test_labels_of_a_sentence():
    docs = convert.read_docs(PROJECT / "assets" / "labelled" / "test.conllu")
    (doc,) = (doc for doc in docs if doc.text.strip() == "Elin Marsh moved to Lisbon in April .")
    assert [(ent.text, ent.label_) for ent in doc.ents] == [("Elin Marsh", "PER"), ("Lisbon", "LOC")]
    assert [token.pos_ for token in doc] == "PROPN PROPN VERB ADP PROPN ADP PROPN PUNCT".split()


def test_held_out_text_is_not_in_the_training_text():
    train, held_out = ((PROJECT / "assets" / "text" / f"{name}.txt").read_text() for name in ("train", "held_out"))
    lines = train.splitlines()
    assert len(lines) > 150 and not set(lines) & set(held_out.splitlines())
    nlp = spacy.blank("en")
    assert all([token.text for token in nlp.make_doc(line)] == line.split() for line in lines[:20])


CONLLU = """# text = I don't know.
1\tI\tI\tPRON\tPRP\tCase=Nom\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
4\tknow\tknow\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No
4.1\tit\tit\tPRON\tPRP\t_\t_\t_\t_\t_
5\t.\t.\tPUNCT\t.\t_\t4\tpunct\t_\t_

"""


def test_conllu_of_a_treebank(tmp_path: Path):
    path = tmp_path / "dev.conllu.gz"
    path.write_bytes(gzip.compress(CONLLU.encode()))
    (doc,) = convert.read_docs(path)
    assert doc.text.strip() == "I don't know." and len(doc) == 5
    assert [token.dep_ for token in doc] == ["nsubj", "aux", "advmod", "ROOT", "punct"]
    assert [token.lemma_ for token in doc] == ["I", "do", "not", "know", "."]
    assert doc[0].tag_ == "PRP" and str(doc[0].morph) == "Case=Nom" and doc[2].head.text == "know"


def test_iob(tmp_path: Path):
    path = tmp_path / "dev.iob"
    path.write_text("Anna\tB-PER\nBerg\tI-PER\nsang\tO\n\n\nParis\tB-LOC\n")
    docs = convert.read_docs(path)
    assert [[(ent.text, ent.label_) for ent in doc.ents] for doc in docs] == [
        [("Anna Berg", "PER")],
        [("Paris", "LOC")],
    ]


def test_jsonl(tmp_path: Path):
    path = tmp_path / "dev.jsonl"
    path.write_text('{"text": "Good!", "label": "pos"}\n{"text": "Bad.", "label": "neg"}\n')
    assert [doc.cats for doc in convert.read_docs(path)] == [{"neg": 0.0, "pos": 1.0}, {"neg": 1.0, "pos": 0.0}]


def test_a_language_whose_default_tokenizer_needs_a_package(tmp_path: Path):
    path = tmp_path / "dev.jsonl"
    path.write_text('{"text": "좋다!", "label": "pos"}\n', encoding="utf-8")
    (doc,) = convert.read_docs(path, "ko")
    assert [token.text for token in doc] == ["좋다", "!"] and doc.lang_ == "ko"


def test_no_file_or_several(tmp_path: Path):
    with pytest.raises(SystemExit, match=r"train.conllu.*there is none.*\[vars\]"):
        convert.find_split(tmp_path, "train")
    for name in ("train.iob", "train.jsonl.gz"):
        (tmp_path / name).touch()
    with pytest.raises(SystemExit, match=r"there is train.iob, train.jsonl.gz"):
        convert.find_split(tmp_path, "train")


def test_nothing_in_the_file(tmp_path: Path):
    (tmp_path / "train.iob").touch()
    with pytest.raises(SystemExit, match="nothing to read"):
        convert.read_docs(tmp_path / "train.iob")


def test_tables():
    mix = LayerMix("ner", "input", [0.2, 0.5, 0.3], 0.9)._asdict()
    found = {"ner": {"title": "entities", "baseline": 0.5, "elmo": 0.625, "mixes": [mix]}}
    table = compare.to_markdown(found)
    assert "| entities | 50.00 | 62.50 | +12.50 |" in table
    assert "| ner (input) | 0.200 | 0.500 | 0.300 | 0.900 |" in table


@pytest.mark.parametrize("write", ["", "open('out.txt', 'w')"], ids=["nothing", "an empty file"])
def test_a_command_that_produced_nothing_fails_and_is_not_skipped(project: Path, write: str, capfd: Any):
    lines = ["title: t", "commands:", "  - name: broken", "    script:", f'      - "python -c \\"{write}\\""']
    lines += ['      - "python scripts/check_outputs.py out.txt"', "    outputs: [out.txt]"]
    (project / "project.yml").write_text("\n".join(lines))
    for _ in range(2):
        with pytest.raises(SystemExit) as error:
            project_run(project, "broken")
        assert error.value.code != 0 and "has not produced out.txt" in capfd.readouterr().err


@pytest.mark.slow
def test_smoke(project: Path, tmp_path: Path):
    environment = installed_environment(tmp_path)
    command = [sys.executable, "-m", "spacy", "project", "run"]
    result = subprocess.run([*command, "smoke"], cwd=project, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    smoke = project / "training" / "smoke"
    assert "named entities" in (smoke / "comparison.md").read_text()
    for name in ("ner", "tagger"):
        nlp = spacy.load(smoke / name / "model-best")
        assert nlp.pipe_names == ["elmo", name] and len(nlp("Anna moved to Paris.")) == 5
    shutil.rmtree(smoke / "ner")
    result = subprocess.run(
        [*command, "evaluate", ".", "--vars.training", "training/smoke"],
        cwd=project,
        env=environment,
        capture_output=True,
    )
    assert result.returncode != 0
