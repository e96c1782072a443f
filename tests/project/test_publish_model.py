"""What is published of a run says of itself what is true of its weights."""

from __future__ import annotations

import gzip
from itertools import count
from pathlib import Path

import pytest

from spacy_elmo.pretraining import held_out
from spacy_elmo.pretraining.evaluate import Perplexity, perplexity
from tests.pretraining.small_runs import trained, write_corpus
from tests.project.test_project import load_script

publish_model = load_script("publish_model")


def test_the_progress_is_that_of_the_best_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rising = count(10.0)
    monkeypatch.setattr(held_out, "perplexity", lambda *arguments: Perplexity(*[next(rising)] * 3, 9))
    run = trained(tmp_path / "run", write_corpus(tmp_path / "text"))
    plateau = run.progress.plateau
    *_, progress = publish_model.load_run(tmp_path / "run")
    assert progress["step"] == plateau.best_step == 10
    (tmp_path / "run" / "checkpoints" / "best.safetensors").unlink()
    with pytest.warns(match="W200"), pytest.raises(SystemExit, match=f"step {plateau.best_step}"):
        publish_model.load_run(tmp_path / "run")


def write_text(directory: Path, lines: list[str], table: list[tuple[int, int, str]]) -> Path:
    with gzip.open(directory / "valid.txt.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    with gzip.open(directory / "valid.docs.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("first_line\tn_lines\tdomain\ttitle\n")
        file.writelines(f'{first}\t{number}\t{domain}\tan "odd title\n' for first, number, domain in table)
    return directory / "valid.txt.gz"


def test_domains_are_scored_by_themselves_and_together(tmp_path: Path):
    trained(tmp_path / "run", write_corpus(tmp_path / "text"))
    bilm, head, vocabulary, _ = publish_model.load_run(tmp_path / "run")
    lines = ["a b", "c d e", "b", "e a"]
    text = write_text(tmp_path, lines, [(0, 1, "fiction"), (1, 2, "web"), (3, 1, "fiction")])
    found = publish_model.score(bilm, head, vocabulary, text)
    assert list(found) == ["valid.txt.gz", "valid.txt.gz, fiction", "valid.txt.gz, web"]
    expected = [lines, [lines[0], lines[3]], lines[1:3]]
    for perplexities, some in zip(found.values(), expected, strict=True):
        assert perplexities == pytest.approx(perplexity(bilm, head, vocabulary, [line.split() for line in some]))


def test_a_table_of_another_text_is_refused(tmp_path: Path):
    with pytest.raises(SystemExit, match="tells of 3 lines, .* has 2"):
        publish_model.by_domain(write_text(tmp_path, ["a", "b"], [(0, 3, "web")]))


def test_a_run_that_is_not_finished(tmp_path: Path):
    with pytest.raises(Exception, match="ELMO-E1"):
        publish_model.load_run(tmp_path)
