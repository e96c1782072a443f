"""`python -m spacy elmo tokenize`: raw text as files of one sentence a line, whole or not there, and made once."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import spacy

import spacy_elmo
from spacy_elmo.cli import raw_text, sentence_splitting
from spacy_elmo.cli.raw_text import read_manifest, tokenize_sources
from spacy_elmo.cli.sentence_splitting import RawText, Splitter, split_in_processes
from spacy_elmo.errors import CorpusError, ElmoError, PipelineError
from spacy_elmo.pretraining.corpus import Corpus, find_shards
from tests.cli.conftest import Command

TEXTS = ["Hello  there, world.\nHow are you?", "", " \n ", "One more line"]
SENTENCES = ["Hello there , world .", "How are you ?", "One more line"]


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def lines(shards: list[Path]) -> list[str]:
    return [line for shard in shards for line in gzip.decompress(shard.read_bytes()).decode().splitlines()]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write(tmp_path / "texts.jsonl", TEXTS)


def test_the_command_writes_what_pretraining_reads(texts: Path, tmp_path: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "tokenize", texts, tmp_path / "out", "--tokenizer", "en")
    assert result.exit_code == 0, result.output
    assert "1 files, 12 words in 3 sentences of 4 texts" in result.stdout
    shards = find_shards([tmp_path / "out"])
    assert [path.name for path in shards] == ["00000.txt.gz"]
    assert [" ".join(sentence) for sentence in Corpus(shards).sentences()] == SENTENCES


def test_processes_change_nothing(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [f"Text number {number}. And more of it." for number in range(4000)])
    alone = tokenize_sources([source], tmp_path / "alone", "en")
    together = tokenize_sources([source], tmp_path / "together", "en", n_process=2)
    assert [path.read_bytes() for path in together] == [path.read_bytes() for path in alone]
    assert lines(together)[:2] == ["Text number 0 .", "And more of it ."] and len(lines(together)) == 8000


def test_all_kinds_of_sources_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'\xef\xbb\xbf{"text": "First."}\r\n\r\n'))
    (tmp_path / "a.jsonl").write_text('{"tokens": ["Split", "al ready", " "]}\n{"text": "Last.", "meta": {"a": 1}}')
    (tmp_path / "c.txt").write_text("Of another kind")
    found = tokenize_sources([tmp_path / "b.jsonl.gz", tmp_path], tmp_path / "out", "en")
    assert lines(found) == ["First .", "Split al ready", "Last ."]


def test_plain_text_where_it_is_asked_for(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("\ufeffOne line. Two sentences.\n\nAnother line", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"E420.*a\.txt.*--plain-text"):
        tokenize_sources([source], tmp_path / "out", "en")
    shards = tokenize_sources([source], tmp_path / "out", "en", plain_text=True)
    assert lines(shards) == ["One line .", "Two sentences .", "Another line"]


def test_a_directory_of_nothing_but_plain_text_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("One line.")
    with pytest.raises(CorpusError, match=r"E420.*a\.txt.*--plain-text"):
        tokenize_sources([tmp_path / "texts"], tmp_path / "out", "en")


def test_another_name_of_json_lines(tmp_path: Path) -> None:
    source = write(tmp_path / "a.ndjson", ["One line."])
    assert lines(tokenize_sources([source], tmp_path / "out", "en")) == ["One line ."]


def test_long_sentences_are_cut(texts: Path, tmp_path: Path) -> None:
    assert lines(tokenize_sources([texts], tmp_path / "out", "en", max_words=3)) == [
        *("Hello there ,", "world .", "How are you", "?", "One more line")
    ]


def test_shards_are_bounded_and_nothing_is_lost_between_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_text, "_WORDS_OF_A_SHARD", 50)
    monkeypatch.setattr(sentence_splitting, "_BATCH_TEXTS", 7)
    source = write(tmp_path / "a.jsonl", [f"Number {number}." for number in range(100)])
    shards = tokenize_sources([source], tmp_path / "out", "en")
    assert [path.name for path in shards] == [f"{number:05}.txt.gz" for number in range(len(shards))]
    assert lines(shards) == [f"Number {number} ." for number in range(100)]
    assert len(shards) == 5 and find_shards([tmp_path / "out"]) == shards
    manifest = read_manifest(tmp_path / "out")
    assert [manifest[name] for name in ("texts", "sentences", "words", "split_tokens")] == [100, 100, 300, 0]


def test_a_token_with_whitespace_becomes_several_words(tmp_path: Path, spacy_command: Command) -> None:
    nlp = spacy.blank("en")
    nlp.tokenizer.add_special_case("New York", [{"ORTH": "New York"}])
    assert [token.text for token in nlp("in New York")] == ["in", "New York"]
    nlp.to_disk(tmp_path / "pipeline")
    source = write(tmp_path / "a.jsonl", ["in New York in New York"])
    result = spacy_command("elmo", "tokenize", source, tmp_path / "out", "--tokenizer", tmp_path / "pipeline")
    assert lines(find_shards([tmp_path / "out"])) == ["in New York in New York"]
    assert read_manifest(tmp_path / "out")["split_tokens"] == 2
    assert "2 tokens with whitespace in them became several words" in result.stdout


def test_a_token_of_whitespace_does_not_hide_one_that_has_some() -> None:
    lines, counted = Splitter("en", 200).split([RawText(Path("a.jsonl"), 1, ["New York", " "])])
    assert (lines, counted.words, counted.split_tokens) == (b"New York\n", 2, 1)


# Pipelines.


def test_of_a_pipeline_what_splits_is_used(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec")
    senter = {
        "@architectures": "spacy.Tagger.v2",
        "tok2vec": {"@architectures": "spacy.Tok2VecListener.v1", "width": 96},
    }
    nlp.add_pipe("senter", config={"model": senter})
    nlp.add_pipe("tagger").add_label("X")
    nlp.initialize()
    nlp.to_disk(tmp_path / "pipeline")
    splitter = Splitter(str(tmp_path / "pipeline"), 200)
    assert splitter.nlp.pipe_names == ["tok2vec", "senter"]
    assert splitter.nlp.max_length == nlp.max_length
    assert splitter.about()["pipeline"] == f"en_pipeline {nlp.meta['version']}"
    split, counted = splitter.split([RawText(tmp_path, 1, "Some words here")])
    assert split.split() == [b"Some", b"words", b"here"] and counted.words == 3


def test_a_pipeline_that_splits_no_sentences_gets_a_sentencizer(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("ner")  # was never trained, so that it would fail
    nlp.to_disk(tmp_path / "pipeline")
    source = write(tmp_path / "a.jsonl", ["One. Two."])
    assert lines(tokenize_sources([source], tmp_path / "out", str(tmp_path / "pipeline"))) == ["One .", "Two ."]


@pytest.mark.parametrize(("name", "code"), [("zzz", "E415"), ("no_such_pipeline", "E408"), ("a\0name", "E408")])
def test_no_such_tokenizer(texts: Path, tmp_path: Path, name: str, code: str) -> None:
    with pytest.raises(PipelineError, match=f"{code}.*{re.escape(repr(name))}"):
        tokenize_sources([texts], tmp_path / "out", name)
    assert not (tmp_path / "out").exists()


# A second call.


def test_a_second_call_uses_what_is_there(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = tokenize_sources([texts], tmp_path / "out", "en")
    texts = texts.rename(tmp_path / "renamed.jsonl")
    monkeypatch.setattr(Splitter, "split", None)
    assert tokenize_sources([texts], tmp_path / "out", "en", n_process=2) == shards


@pytest.mark.parametrize("changed", ["sources", "order", "tokenizer", "max_words"])
def test_other_input_is_refused(texts: Path, tmp_path: Path, changed: str) -> None:
    other = write(tmp_path / "other.jsonl", ["Something else."])
    shards = tokenize_sources([texts, other], tmp_path / "out", "en")
    before = [path.read_bytes() for path in shards]
    if changed == "sources":
        write(other, ["Something else!"])
    sources = [other, texts] if changed == "order" else [texts, other]
    tokenizer, max_words = ("xx" if changed == "tokenizer" else "en"), (3 if changed == "max_words" else 200)
    with pytest.raises(CorpusError, match=f"E421.*another {'sources' if changed == 'order' else changed}"):
        tokenize_sources(sources, tmp_path / "out", tokenizer, max_words=max_words)
    assert [path.read_bytes() for path in shards] == before


@pytest.mark.parametrize("damage", ["changed", "gone", "manifest", "manifest of another program", "no manifest"])
def test_what_was_damaged_is_not_used(texts: Path, tmp_path: Path, damage: str) -> None:
    (shard,) = tokenize_sources([texts], tmp_path / "out", "en")
    manifest = tmp_path / "out" / "manifest.json"
    if damage == "changed":
        shard.write_bytes(gzip.compress(b"other\n"))
    elif damage == "gone":
        shard.unlink()
    elif damage == "manifest":
        manifest.write_text("{")
    elif damage == "manifest of another program":
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"shards": ["00000.txt.gz"]}))
    else:
        manifest.unlink()
    with pytest.raises(ElmoError, match="E430" if damage == "no manifest" else "E421"):
        tokenize_sources([texts], tmp_path / "out", "en")


# What goes wrong.


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("no json", "E242"),
        ("[]", "E242"),
        ('{"other": "a"}', "E242"),
        ('{"text": 3}', "E242"),
        ('{"text": "\\udc00"}', "E242"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_left(tmp_path: Path, line: str, code: str) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "Fine."}\n' + line + "\n")
    with pytest.raises(CorpusError, match=rf"{code}.*a\.jsonl, line 2"):
        tokenize_sources([source], tmp_path / "out", "en")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_nothing_to_read(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", ["", "  \n"])
    with pytest.raises(CorpusError, match=r"E423.*a\.jsonl"):
        tokenize_sources([source], tmp_path / "out", "en")
    with pytest.raises(CorpusError, match="E200"):
        tokenize_sources([tmp_path / "none.jsonl"], tmp_path / "out", "en")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_text_too_long_for_the_pipeline(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_splitting, "_NO_LIMIT", 20)
    with pytest.raises(CorpusError, match=r"E403.*texts\.jsonl, line 1, has 33 characters"):
        tokenize_sources([texts], tmp_path / "out", "en")


def test_a_tokenizer_that_fails(tmp_path: Path) -> None:
    def fail(text: str) -> None:
        raise RuntimeError("no dictionary found")

    splitter = Splitter("en", 200)
    splitter.nlp.tokenizer = fail
    with pytest.raises(CorpusError, match=r"E422.*a\.jsonl, line 7.*no dictionary found"):
        splitter.split([RawText(Path("a.jsonl"), 7, "text")])


def test_a_source_that_changes_meanwhile(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = Splitter.split

    def change(self: Splitter, batch: list[RawText]) -> object:
        write(texts, ["Something else."])
        return split(self, batch)

    monkeypatch.setattr(sentence_splitting, "_BATCH_TEXTS", 1)
    monkeypatch.setattr(Splitter, "split", change)
    with pytest.raises(CorpusError, match=r"E245.*texts\.jsonl"):
        tokenize_sources([texts], tmp_path / "out", "en")
    assert [path.name for path in tmp_path.iterdir()] == ["texts.jsonl"]


@pytest.mark.slow
def test_an_error_in_a_worker_is_told_as_it_is(texts: Path, tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("senter")
    nlp.initialize()
    nlp.to_disk(tmp_path / "pipeline")
    long = RawText(texts, 7, "a " * nlp.max_length)
    with pytest.raises(CorpusError, match=r"^\[ELMO-E403\].*texts\.jsonl, line 7, has 2,000,000 characters"):
        list(split_in_processes(Splitter(str(tmp_path / "pipeline"), 200), [long], 2))


@pytest.mark.slow
def test_workers_that_die_are_told_of(texts: Path, tmp_path: Path) -> None:
    spacy.blank("en").to_disk(tmp_path / "pipeline")
    splitter = Splitter(str(tmp_path / "pipeline"), 200)
    shutil.rmtree(tmp_path / "pipeline")
    with pytest.raises(CorpusError, match="E424"):
        list(split_in_processes(splitter, [RawText(texts, 1, "text")], 2))


def test_processes_that_cannot_be_started(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(sentence_splitting.ProcessPoolExecutor, "submit", fail)
    with pytest.raises(CorpusError, match=r"E470.*Resource temporarily unavailable"):
        tokenize_sources([texts], tmp_path / "out", "en", n_process=2)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command at work in two processes beside its own, on text for about a minute."""
    source = write(tmp_path / "a.jsonl", ["Some text of a few words. And more."] * 300_000)
    script = tmp_path / "command.py"
    script.write_text(
        "import spacy_elmo.cli\nfrom spacy.cli import setup_cli\nif __name__ == '__main__':\n    setup_cli()\n"
    )
    command = [
        sys.executable,
        script,
        "elmo",
        "tokenize",
        source,
        tmp_path / "out",
        "--tokenizer",
        "en",
        "--n-process",
        "2",
    ]
    paths = {**os.environ, "PYTHONPATH": str(Path(spacy_elmo.__file__).parents[1])}
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    # A group of its own gets Ctrl-C as the processes of a terminal do.
    with subprocess.Popen(list(map(str, command)), env=paths, start_new_session=True, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_ended_leaves_no_text_and_no_process(
    command: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals
) -> None:
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out.*.part/.*")):
        assert time.monotonic() < deadline and command.poll() is None
        time.sleep(0.1)
    children = children_of(command)
    assert len(children) >= 2
    command.send_signal(number)
    assert command.wait(60) == (130 if number == signal.SIGTERM else -number)
    assert not (tmp_path / "out").exists()
    if number == signal.SIGTERM:
        assert list(tmp_path.glob(".out.*")) == []
    while any(is_running(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_interrupting_processes_that_have_just_begun_is_one_message(command: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while len(children_of(command)) < 3:  # the third keeps account of what the others share
        assert time.monotonic() < deadline and command.poll() is None
        time.sleep(0.01)
    time.sleep(0.5)  # they import now
    os.killpg(command.pid, signal.SIGINT)
    assert command.wait(60) == 130
    assert command.stderr is not None
    said = command.stderr.read().decode()
    assert said.endswith("Interrupted.\n") and "Traceback" not in said


def children_of(process: subprocess.Popen[bytes]) -> list[str]:
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def is_running(process: str) -> bool:
    try:
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
