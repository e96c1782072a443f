"""`python -m spacy elmo perplexity`: the table, JSON, and a line a word and a sentence."""

from __future__ import annotations

import gzip
import json
import math
import shutil
from pathlib import Path

import pytest
import spacy
import torch
import typer

from spacy_elmo.cli.perplexity import find_texts, load_scoring_model, score_files
from spacy_elmo.errors import CorpusError, WeightsError
from spacy_elmo.lm.softmax import build_head
from spacy_elmo.pretraining.evaluate import perplexity
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.weights.native import VOCABULARY_FILE, load_bilm, load_head, save_head
from tests.cli.conftest import Command

WORDS = ["<S>", "</S>", "<UNK>", "the", "bank", "of", "river", "."]
NEWS = "the bank of the river .\n\n  the   bank \n"
BLOG = "nowhere the bank\n.\n"


@pytest.fixture(scope="module")
def model(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scored") / "model"
    shutil.copytree(source, directory)
    torch.manual_seed(3)
    save_head(build_head({"kind": "full", "projection": 8, "n_words": len(WORDS)}), directory)
    Vocabulary(WORDS).save(directory / VOCABULARY_FILE)
    return directory


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    (tmp_path / "news.txt").write_text(NEWS, encoding="utf-8")
    (tmp_path / "blog.txt").write_text(BLOG, encoding="utf-8")
    return [tmp_path / "news.txt", tmp_path / "blog.txt"]


def rows_of(path: Path) -> list[dict[str, str]]:
    header, *lines = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    return [dict(zip(header, line, strict=True)) for line in lines]


def test_json_agrees_with_the_evaluation_of_pretraining(model: Path, files: list[Path], spacy_command: Command) -> None:
    result = spacy_command("elmo", "perplexity", model, *files, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    texts = {"news": NEWS, "blog": BLOG, "all": NEWS + BLOG}
    for part, text in zip([*found["files"], found["all"]], texts.values(), strict=True):
        sentences = [line.split() for line in text.splitlines() if line.strip()]
        expected = perplexity(load_bilm(model), load_head(model), Vocabulary(WORDS), sentences)
        measured = [part[f"perplexity_{name}"] for name in ("forward", "backward", "joint")]
        assert measured == pytest.approx(expected[:3], rel=1e-5)
        assert part["predicted"] == expected.words
    assert [part["name"] for part in found["files"]] == [str(path) for path in files]
    blog = found["files"][1]
    assert (blog["words"], blog["unknown"], blog["unknown_rate"]) == (4, 1, 0.25)
    assert (found["vocabulary"], found["ends"]) == (8, True)


def test_table_has_a_line_for_each_file_and_for_all(model: Path, files: list[Path], spacy_command: Command) -> None:
    result = spacy_command("elmo", "perplexity", model, *files)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines() if line]
    assert [line[1:3] for line in lines if line[0] in {*map(str, files), "all"}] == [
        ["2", "8"],
        ["2", "4"],
        ["4", "12"],
    ]
    assert "8 words" in result.stdout and "end of each sentence" in result.stdout


def test_standard_input(model: Path, files: list[Path], spacy_command: Command) -> None:
    result = spacy_command("elmo", "perplexity", model, "-", "--json", stdin=NEWS.encode())
    assert result.exit_code == 0, result.output
    (part,) = json.loads(result.stdout)["files"]
    (expected, _) = score_files(load_scoring_model(model), files[:1])
    assert part == {**expected.to_dict(), "name": "-"}


def test_compressed_text(model: Path, files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "news.txt.gz").write_bytes(gzip.compress(NEWS.encode()))
    loaded = load_scoring_model(model)
    packed, plain = (score_files(loaded, [path])[1] for path in (tmp_path / "news.txt.gz", files[0]))
    assert packed == plain


def test_ends_can_be_left_out(model: Path, files: list[Path], tmp_path: Path, spacy_command: Command) -> None:
    words, path = tmp_path / "words.tsv", files[0]
    result = spacy_command("elmo", "perplexity", model, path, "--json", "--no-ends", "--per-word", words)
    found = json.loads(result.stdout)["all"]
    assert found["predicted"] == found["words"] == 8
    forward = [float(row["forward"]) for row in rows_of(words)]
    assert found["perplexity_forward"] == pytest.approx(math.exp(-sum(forward) / 8), rel=1e-5)


def test_line_a_word(model: Path, files: list[Path], tmp_path: Path) -> None:
    score_files(load_scoring_model(model), files, tmp_path / "words.tsv")
    rows = rows_of(tmp_path / "words.tsv")
    assert [row["word"] for row in rows] == (NEWS + BLOG).split()
    assert [row["line"] for row in rows] == [*["1"] * 6, *["3"] * 2, *["1"] * 3, "2"]
    assert [row["known"] for row in rows if row["word"] == "nowhere"] == ["0"]
    for row in rows:
        for side in ("forward", "backward"):
            assert float(row[f"surprisal_{side}"]) == pytest.approx(-float(row[side]) / math.log(2), rel=1e-4)


def test_line_a_sentence_has_the_sums_of_its_words(model: Path, files: list[Path], tmp_path: Path) -> None:
    loaded = load_scoring_model(model)
    *_, whole = score_files(loaded, files, tmp_path / "words.tsv", tmp_path / "sentences.tsv", ends=False)
    sentences, words = rows_of(tmp_path / "sentences.tsv"), rows_of(tmp_path / "words.tsv")
    assert [row["words"] for row in sentences] == ["6", "2", "3", "1"]
    first = sum(float(row["forward"]) for row in words[:6])
    assert float(sentences[0]["forward"]) == pytest.approx(first, rel=1e-4)
    assert float(sentences[0]["perplexity_forward"]) == pytest.approx(math.exp(-first / 6), rel=1e-4)
    assert sum(float(row["backward"]) for row in sentences) == pytest.approx(whole.backward, rel=1e-4)


def test_result_does_not_depend_on_the_batch(model: Path, files: list[Path]) -> None:
    loaded = load_scoring_model(model)
    small, large = (score_files(loaded, files, batch_words=words)[-1] for words in (1, 1000))
    assert small.perplexities() == pytest.approx(large.perplexities(), rel=1e-5)
    assert small.words == large.words


def test_model_without_a_softmax_is_refused_before_anything_is_written(
    source: Path, files: list[Path], tmp_path: Path, spacy_command: Command
) -> None:
    result = spacy_command("elmo", "perplexity", source, *files, "--per-word", tmp_path / "words.tsv")
    assert result.exit_code == 1 and "[ELMO-E456]" in result.output and "pretrain" in result.output
    assert not (tmp_path / "words.tsv").exists()


def test_softmax_without_its_vocabulary(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model" / VOCABULARY_FILE).unlink()
    with pytest.raises(WeightsError, match="E456.*vocabulary"):
        load_scoring_model(tmp_path / "model")


def test_embedded_model_by_name() -> None:
    assert load_scoring_model("en_elmo_sm").vocabulary[:3] == ["<S>", "</S>", "<UNK>"]


def test_file_without_words_leaves_what_was_there(
    model: Path, files: list[Path], tmp_path: Path, spacy_command: Command
) -> None:
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    (tmp_path / "words.tsv").write_text("before", encoding="utf-8")
    result = spacy_command("elmo", "perplexity", model, files[0], tmp_path / "empty.txt", "--per-word", tmp_path / "words.tsv")  # fmt: skip
    assert result.exit_code == 1 and "[ELMO-E457]" in result.output
    assert (tmp_path / "words.tsv").read_text(encoding="utf-8") == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blog.txt", "empty.txt", "news.txt", "words.tsv"]


@pytest.mark.parametrize("extra", [["news.txt"], ["--per-word", "out.tsv", "--per-sentence", "out.tsv"]])
def test_names_that_clash(model: Path, files: list[Path], extra: list[str], spacy_command: Command) -> None:
    arguments = [argument if argument.startswith("--") else files[0].parent / argument for argument in extra]
    result = spacy_command("elmo", "perplexity", model, files[0], *arguments)
    assert result.exit_code == 2 and not (files[0].parent / "out.tsv").exists()


def test_threads_are_set_back(model: Path, files: list[Path], spacy_command: Command) -> None:
    before = torch.get_num_threads()
    result = spacy_command("elmo", "perplexity", model, files[0], "--threads", before + 1)
    assert result.exit_code == 0, result.output
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("name", ["news.jsonl", "news.ndjson", "news.jsonl.gz"])
def test_json_of_tokens(model: Path, files: list[Path], name: str) -> None:
    lines = [json.dumps({"tokens": line.split()}) if line.strip() else "" for line in NEWS.splitlines()]
    content, path = "\n".join(lines).encode(), files[0].with_name(name)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    loaded = load_scoring_model(model)
    packed, plain = (score_files(loaded, [each])[1] for each in (path, files[0]))
    assert packed == plain


@pytest.mark.parametrize("name", ["raw.jsonl", "raw.jsonl.gz"])
def test_json_of_raw_text_is_refused(model: Path, tmp_path: Path, name: str, spacy_command: Command) -> None:
    content = b'{"tokens": ["the"]}\n{"text": "The bank."}\n'
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    result = spacy_command("elmo", "perplexity", model, tmp_path / name)
    assert result.exit_code == 1 and "[ELMO-E243]" in result.output and "line 2" in result.output
    assert "elmo tokenize" in result.output and '{"tokens": ["two", "words"]}' in result.output


@pytest.mark.parametrize("line", ['{"txt": 1}', '{"tokens": [1]}', "{", "[]"])
def test_broken_json_is_told_without_options_that_are_not_there(model: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "bad.jsonl").write_text(line, encoding="utf-8")
    with pytest.raises(CorpusError, match="E242.*line 1") as caught:
        score_files(load_scoring_model(model), [tmp_path / "bad.jsonl"])
    assert "--no-jsonl" not in str(caught.value)


@pytest.mark.parametrize("pattern", ["", "*.txt", "**/*.txt"])
def test_directories_and_patterns_give_a_score_for_each_file(
    model: Path, files: list[Path], pattern: str, spacy_command: Command
) -> None:
    result = spacy_command("elmo", "perplexity", model, files[0].parent / pattern, "--json")
    assert result.exit_code == 0, result.output
    assert [part["name"] for part in json.loads(result.stdout)["files"]] == sorted(map(str, files))


def test_file_that_is_found_twice(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files[0].parent)
    with pytest.raises(typer.BadParameter, match="news.txt is given twice"):
        find_texts([str(files[0].parent), "news.txt"])


@pytest.mark.parametrize(("name", "code"), [("none.txt", "E400"), ("none*.txt", "E200"), ("x" * 5000, "E400")])
def test_nothing_to_score(files: list[Path], name: str, code: str) -> None:
    with pytest.raises(CorpusError, match=code):
        find_texts([str(files[0].with_name(name))])


def test_an_empty_name_is_no_directory() -> None:
    with pytest.raises(CorpusError, match="E400.*names no file"):
        find_texts([""])


def test_gpu_that_is_not_there(model: Path, files: list[Path], spacy_command: Command) -> None:
    result = spacy_command("elmo", "perplexity", model, files[0], "--gpu-id", 99)
    assert result.exit_code == 1 and "[ELMO-E412]" in result.output


def test_help_says_the_units(spacy_command: Command) -> None:
    said = " ".join(spacy_command("elmo", "perplexity", "--help").output.replace("│", " ").split())
    assert "natural logarithms" in said and "bits" in said


def test_pipeline_in_place_of_weights(source: Path, files: list[Path], tmp_path: Path, spacy_command: Command) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"source": str(source)}})
    nlp.to_disk(tmp_path / "saved")
    result = spacy_command("elmo", "perplexity", tmp_path / "saved", files[0])
    assert result.exit_code == 1 and "[ELMO-E481]" in result.output
    assert str(tmp_path / "saved" / "elmo" / "bilm") in result.output
