"""`python -m spacy elmo mixes`: the table, JSON and the picture."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.training import Example

from spacy_elmo.cli.info import describe
from spacy_elmo.cli.mixes import mix_table, plot_mixes
from spacy_elmo.errors import ElmoError
from spacy_elmo.pipeline.mixes import LayerMix
from tests.cli.conftest import Command

MIXES = [LayerMix("tagger", "input", [0.2, 0.7, 0.1], 0.5), LayerMix("ner", None, [0.5, 0.5], 1.25)]


@pytest.fixture(scope="module")
def model(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"source": str(source)}})
    nlp.add_pipe("tagger", config={"model": {"tok2vec": {"@architectures": "spacy_elmo.ElmoListener.v1"}}})
    doc = nlp.make_doc("Anna paid")
    nlp.initialize(lambda: [Example.from_dict(doc, {"words": ["Anna", "paid"], "tags": ["N", "V"]})])
    directory = tmp_path_factory.mktemp("mixes") / "model"
    nlp.to_disk(directory)
    return directory


def test_table_of_the_command(model: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "mixes", model)
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.output.splitlines() if "tagger" in line] == [
        ["tagger", *["0.333"] * 3, "1.000"]
    ]


def test_json_of_the_command(model: Path, spacy_command: Command) -> None:
    (mix,) = json.loads(spacy_command("elmo", "mixes", model, "--json").stdout)
    assert mix == {"component": "tagger", "place": None, "shares": [pytest.approx(1 / 3)] * 3, "gamma": 1.0}


def test_table_has_room_for_the_most_layers() -> None:
    header, rows = mix_table(MIXES)
    assert header == ["component", "layer 0", "layer 1", "layer 2", "gamma"]
    assert rows[0] == ["tagger (input)", "0.200", "0.700", "0.100", "0.500"]
    assert rows[1] == ["ner", "0.500", "0.500", "", "1.250"]


def test_pipeline_without_mixes(tmp_path: Path, spacy_command: Command) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.to_disk(tmp_path / "model")
    result = spacy_command("elmo", "mixes", tmp_path / "model")
    assert result.exit_code == 1 and "[ELMO-E453]" in result.output and "sentencizer" in result.output


@pytest.mark.parametrize(("suffix", "begin"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_picture(suffix: str, begin: bytes, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_mixes(MIXES, tmp_path / f"mixes{suffix}")
    assert (tmp_path / f"mixes{suffix}").read_bytes().startswith(begin)


def test_picture_has_shares_and_names(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").rcParams["svg.fonttype"] = "none"
    plot_mixes(MIXES, tmp_path / "mixes.svg")
    text = (tmp_path / "mixes.svg").read_text(encoding="utf-8")
    assert all(part in text for part in ("0.70", "tagger (input)", "γ = 1.25", "layer 2"))


def test_picture_of_no_known_format(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ElmoError, match="E455.*'.xyz'"):
        plot_mixes(MIXES, tmp_path / "mixes.xyz")
    assert list(tmp_path.iterdir()) == []


def test_picture_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def without(name: str, *rest: Any, **others: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return found(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ElmoError, match=r"E454.*spacy-elmo\[plots\]"):
        plot_mixes(MIXES, tmp_path / "mixes.png")


def test_info_of_a_pipeline_shows_the_mixes_and_the_weights(model: Path, source: Path, spacy_command: Command) -> None:
    found = json.loads(spacy_command("elmo", "info", model, "--json").stdout)
    assert found["Mixes of layers"] == {"tagger": {"layers": [pytest.approx(1 / 3, abs=1e-4)] * 3, "gamma": 1.0}}
    assert found["Weights of elmo"]["fingerprint"] == describe(source)["Weights"]["fingerprint"]
    assert found["Weights of elmo"]["listening"] == ["tagger"]


def test_info_of_a_pipeline_without_elmo(tmp_path: Path, spacy_command: Command) -> None:
    spacy.blank("en").to_disk(tmp_path / "model")
    result = spacy_command("elmo", "info", tmp_path / "model")
    assert result.exit_code == 1 and "[ELMO-E407]" in result.output


def test_directory_of_a_training_run_names_its_pipelines(tmp_path: Path, spacy_command: Command) -> None:
    (tmp_path / "trained").mkdir()
    for name in ("model-last", "model-best"):
        spacy.blank("en").to_disk(tmp_path / "trained" / name)
    result = spacy_command("elmo", "mixes", tmp_path / "trained")
    best, last = (tmp_path / "trained" / name for name in ("model-best", "model-last"))
    assert result.exit_code == 1 and "[ELMO-E484]" in result.output and f"{best}, {last}" in result.output


def test_weights_have_no_mixes(source: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "mixes", source)
    assert result.exit_code == 1 and "[ELMO-E483]" in result.output and "--source" not in result.output
