from __future__ import annotations

import gzip
import io
import os
import time
from itertools import chain
from pathlib import Path

import pytest

from spacy_elmo.errors import CorpusError
from spacy_elmo.lm.config import MAX_CHARACTERS
from spacy_elmo.pretraining import corpus as corpus_module
from spacy_elmo.pretraining import text_files
from spacy_elmo.pretraining.corpus import Corpus, CorpusReport, find_shards, spool, text_checksum
from spacy_elmo.weights import files


def write(path: Path, text: str | bytes) -> Path:
    data = text.encode("utf-8") if isinstance(text, str) else text
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def numbered(directory: Path, shards: int = 3, lines: int = 20) -> Corpus:
    for shard in range(shards):
        text = "".join(f"s{shard}l{line} " * (line % 7 + 1) + "\n" for line in range(lines))
        write(directory / f"{shard}.txt", text)
    return Corpus(find_shards([directory]))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_reads_plain_and_gzip(tmp_path, name):
    corpus = Corpus.find([write(tmp_path / name, "one two\nthree\n")])
    assert list(corpus.sentences()) == [["one", "two"], ["three"]]


def test_a_directory_gives_its_text_files_in_order(tmp_path):
    for name in ("b.txt", "a.txt.gz", "notes.md", ".hidden.txt"):
        write(tmp_path / name, "x\n")
    (tmp_path / "folder.txt").mkdir()
    assert [path.name for path in Corpus.find([tmp_path]).shards] == ["a.txt.gz", "b.txt"]


def test_a_directory_of_all_kinds_of_files(tmp_path):
    names = ["a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d.txt", "e.txt.gz", "f.txt.zst"]
    for name in (*names, "g.json", "h.gz", "i.zst", "j.txt.bz2"):
        write(tmp_path / name, "x\n")
    assert [path.name for path in find_shards([tmp_path])] == names


def test_files_of_both_kinds_are_one_corpus(tmp_path):
    sources = [write(tmp_path / "b.txt", "one two\n"), write(tmp_path / "a.jsonl.gz", '{"tokens": ["three"]}\n')]
    assert list(Corpus.find(sources).sentences()) == [["one", "two"], ["three"]]


def test_glob_patterns_and_repeated_sources(tmp_path):
    for name in ("b.txt", "deep/a.txt", "c.log"):
        write(tmp_path / name, "x\n")
    found = Corpus.find([f"{tmp_path}/**/*.txt", tmp_path / "b.txt"]).shards
    assert sorted(path.name for path in found) == ["a.txt", "b.txt"]


def test_a_directory_holds_json_lines_of_both_names(tmp_path):
    for name in ("a.jsonl", "b.ndjson"):
        write(tmp_path / name, '{"tokens": ["x"]}\n')
    assert [path.name for path in Corpus.find([tmp_path]).shards] == ["a.jsonl", "b.ndjson"]


def test_a_file_whose_name_looks_like_a_pattern(tmp_path):
    path = write(tmp_path / "part[1].txt", "x\n")
    assert Corpus.find([path]).shards == [path]


@pytest.mark.parametrize("source", ["missing.txt", "*.txt", "."])
def test_nothing_found(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError, match="E200.*" + source.replace("*", r"\*").replace(".", r"\.")):
        Corpus.find([source])


def test_truncated_gzip_names_file_and_line(tmp_path):
    whole = gzip.compress("".join(f"line number {n}\n" for n in range(5000)).encode())
    path = tmp_path / "a.txt.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorpusError, match=r"E201.*a\.txt\.gz cannot be read beyond line [1-9]\d\d"):
        list(Corpus.find([path]).sentences())


@pytest.mark.parametrize("data", [b"no gzip", gzip.compress(b"a b c\n" * 50)[:-9] + b"\0" * 9])
def test_broken_gzip(tmp_path, data):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(data)
    with pytest.raises(CorpusError, match="E201"):
        list(Corpus.find([path]).sentences())


def test_a_shard_that_is_gone(tmp_path):
    corpus = Corpus.find([write(tmp_path / "a.txt", "x\n")])
    corpus.shards[0].unlink()
    with pytest.raises(CorpusError, match="E201"):
        list(corpus.sentences())
    with pytest.raises(CorpusError, match="E201"):
        corpus.identity()


def test_empty_lines_are_counted(tmp_path):
    corpus = Corpus.find([write(tmp_path / "a.txt", "\nx y\n\n  \nz\n")])
    assert list(corpus.sentences()) == [["x", "y"], ["z"]]
    assert (corpus.report.sentences, corpus.report.words, corpus.report.empty_lines) == (2, 3, 3)


def test_a_line_of_a_million_tokens_is_cut_and_counted(tmp_path):
    words = [f"t{number % 1000}" for number in range(1_000_000)]
    corpus = Corpus.find([write(tmp_path / "a.txt", "a b\n" + " ".join(words) + "\nc\n")])
    begin = time.perf_counter()
    sentences = list(corpus.sentences())
    assert time.perf_counter() - begin < 5
    assert list(chain.from_iterable(sentences)) == ["a", "b", *words, "c"]
    assert max(map(len, sentences)) == 200
    assert (corpus.report.cut_lines, corpus.report.words) == (1, 1_000_003)


def test_the_identity_sees_other_text_of_the_same_names_and_sizes(tmp_path):
    corpus = numbered(tmp_path / "one")
    assert Corpus(list(corpus.shards), max_words=7).identity() == corpus.identity()
    assert Corpus(corpus.shards[::-1]).identity() != corpus.identity()
    other = numbered(tmp_path / "other")
    assert other.identity() == corpus.identity()
    text = other.shards[1].read_text()
    write(other.shards[1], text.replace("s1l9 ", "s1l8 "))
    assert other.shards[1].stat().st_size == len(text.encode())
    assert Corpus(other.shards).identity() != corpus.identity()


def test_the_identity_sees_where_a_shard_ends(tmp_path):
    """The shards of an epoch are shuffled, so the same text cut elsewhere comes in another order."""
    one = [write(tmp_path / "1.txt", "a\nb\n"), write(tmp_path / "2.txt", "c\n")]
    other = [write(tmp_path / "3.txt", "a\n"), write(tmp_path / "4.txt", "b\nc\n")]
    assert Corpus(one).identity()["sha256"] != Corpus(other).identity()["sha256"]


def test_the_identity_of_a_file_larger_than_a_block(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt", "a b c\n" * 10)
    whole = Corpus([path]).identity()
    monkeypatch.setattr(files, "_BLOCK", 7)
    assert Corpus([path]).identity() == whole
    assert whole["bytes"] == 60


def test_the_checksum_of_text_sees_words_and_ends_of_sentences():
    texts = [[["a", "b"], ["c"]], [["a", "b"], ["d"]], [["a"], ["b", "c"]], []]
    assert len({text_checksum(text) for text in texts}) == 4
    assert text_checksum(texts[0]) == text_checksum(iter(texts[0]))


# What is told of the lines.


def test_lines_are_told(tmp_path):
    text = "a b\n\n" + "c " * 450 + "\n \nd\0 e\nf"
    corpus = Corpus.find([write(tmp_path / "a.txt", "x\n" * 1000 + text)])
    assert len(list(corpus.sentences())) == 1005
    assert corpus.report == CorpusReport(1005, 1453, 2, 1, 1, 450, 901)


def test_a_line_in_pieces_is_told_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_LONGEST_LINE", 16)
    corpus = Corpus([write(tmp_path / "a.txt", "a b\n" + "word " * 20 + "\nc\n")], max_words=3)
    assert list(chain.from_iterable(corpus.sentences())) == ["a", "b", *["word"] * 20, "c"]
    assert (corpus.report.cut_lines, corpus.report.longest_line_words, corpus.report.longest_line_bytes) == (1, 20, 101)
    assert corpus.report.empty_lines == 0


def test_the_end_of_a_line_in_pieces_is_no_empty_line(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_LONGEST_LINE", 4)
    corpus = Corpus([write(tmp_path / "a.txt", "abc \nd\n\n")])
    assert list(corpus.sentences()) == [["abc"], ["d"]]
    assert corpus.report.empty_lines == 1


def test_a_line_of_ten_megabytes(tmp_path):
    corpus = Corpus.find([write(tmp_path / "a.txt.gz", "ab " * 3_500_000 + "\nlast\n")])
    assert sum(map(len, corpus.sentences())) == 3_500_001
    assert (corpus.report.cut_lines, corpus.report.longest_line_bytes) == (1, 10_500_001)


def test_a_word_without_end_is_cut_to_what_a_bilm_can_see(tmp_path):
    corpus = Corpus.find([write(tmp_path / "a.txt", "a " + "b" * 10_000_000 + " c\n")])
    assert {len(word) for sentence in corpus.sentences() for word in sentence} == {1, MAX_CHARACTERS}


# Parts.


def in_parts(corpus: Corpus, parts: int) -> list[list[list[str]]]:
    return [list(corpus.sentences(part=part, parts=parts)) for part in range(parts)]


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_are_disjoint_and_together_everything(tmp_path, monkeypatch, parts):
    monkeypatch.setattr(corpus_module, "BLOCK_LINES", 4)
    corpus = numbered(tmp_path, shards=5, lines=30)
    found = [tuple(sentence) for part in in_parts(corpus, parts) for sentence in part]
    everything = list(map(tuple, corpus.sentences()))
    assert len(set(found)) == len(found) == len(everything) == 150
    assert set(found) == set(everything)


def test_a_part_is_every_so_manieth_block_over_all_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "BLOCK_LINES", 2)
    write(tmp_path / "a.txt", "0\n\n2\n")
    write(tmp_path / "b.txt.gz", "3\n4")
    write(tmp_path / "c.jsonl", "".join(f'{{"tokens": ["{number}"]}}\n' for number in range(5, 12)))
    found = [[int(sentence[0]) for sentence in part] for part in in_parts(Corpus.find([tmp_path]), 3)]
    assert found == [[0, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]


def test_parts_follow_the_given_order_of_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "BLOCK_LINES", 1)
    a, b = write(tmp_path / "a.txt", "0\n"), write(tmp_path / "b.txt", "1\n2\n")
    corpus = Corpus([a, b])
    assert list(corpus.sentences([b, a], part=0, parts=2)) == [["1"], ["0"]]
    assert list(corpus.sentences([b, a], part=1, parts=2)) == [["2"]]


def test_parts_are_of_nearly_the_same_size(tmp_path):
    corpus = numbered(tmp_path, shards=4, lines=3500)
    sizes = [len(part) for part in in_parts(corpus, 3)]
    assert sum(sizes) == 14_000 and max(sizes) - min(sizes) <= corpus_module.BLOCK_LINES


def test_lines_of_other_parts_are_passed_over_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "BLOCK_LINES", 1)
    path = write(tmp_path / "a.txt", b"fine\n\xff\nfine too\n\xff\n")
    assert list(Corpus([path]).sentences(part=0, parts=2)) == [["fine"], ["fine", "too"]]
    with pytest.raises(CorpusError, match="E202.*line 2"):
        list(Corpus([path]).sentences(part=1, parts=2))


# Files that change while they are read.


def test_a_shard_replaced_between_two_readings(tmp_path):
    corpus = numbered(tmp_path)
    list(corpus.sentences())
    write(tmp_path / "fresh", "other text\n")
    os.replace(tmp_path / "fresh", corpus.shards[1])
    with pytest.raises(CorpusError, match=r"E245.*1\.txt"):
        list(corpus.sentences())
    with pytest.raises(CorpusError, match=r"E245.*1\.txt"):
        corpus.identity()


@pytest.mark.parametrize("change", ["replaced", "cut off", "longer", "gone"])
def test_a_shard_changed_while_it_is_read(tmp_path, change):
    path = write(tmp_path / "a.txt", "some text of many lines\n" * 100_000)
    sentences = Corpus([path]).sentences()
    read = [next(sentences) for _ in range(5)]
    if change == "replaced":
        os.replace(write(tmp_path / "fresh.txt", "other text of many lines\n" * 100_000), path)
    elif change == "cut off":
        os.truncate(path, 1_000_000)
    elif change == "longer":
        with path.open("a") as file:
            file.write("more\n")
    else:
        path.unlink()
    with pytest.raises(CorpusError, match=r"E2(01|45).*a\.txt"):
        for sentence in sentences:
            read.append(sentence)
    # What is read further is little: it does not take the end of the file to see it.
    assert len(read) <= 2 * corpus_module.BLOCK_LINES


def test_a_short_shard_changed_while_it_is_read(tmp_path):
    corpus = numbered(tmp_path, shards=1, lines=20)
    sentences = corpus.sentences()
    next(sentences)
    write(corpus.shards[0], "other text\n")
    with pytest.raises(CorpusError, match=r"E245.*0\.txt"):
        list(sentences)


def test_a_shard_changed_before_its_turn(tmp_path):
    corpus = numbered(tmp_path)
    sentences = corpus.sentences()
    next(sentences)
    write(corpus.shards[2], "other text\n")
    with pytest.raises(CorpusError, match=r"E245.*2\.txt"):
        list(sentences)


def test_a_shard_moved_away_and_back_is_what_it_was(tmp_path):
    corpus = numbered(tmp_path)
    identity, before = corpus.identity(), list(corpus.sentences())
    data = corpus.shards[0].read_bytes()
    corpus.shards[0].unlink()
    corpus.shards[0].write_bytes(data)
    assert list(corpus.sentences()) == before
    assert corpus.identity() == identity


# Standard input.


def test_a_stream_is_kept_and_read_again(tmp_path):
    text = "".join(f"line {number}\n" for number in range(1000))
    path = tmp_path / "run" / "input.txt.gz"
    spool(io.BytesIO(text.encode()), path)
    sentences = [line.split() for line in text.splitlines()]
    assert list(Corpus([path]).sentences()) == list(Corpus([path]).sentences()) == sentences
    assert [child.name for child in path.parent.iterdir()] == ["input.txt.gz"]


def test_the_same_stream_gives_the_same_file(tmp_path):
    for name in ("a.txt.gz", "b.txt.gz"):
        spool(io.BytesIO(b"some text\n" * 1000), tmp_path / name)
    assert (tmp_path / "a.txt.gz").read_bytes() == (tmp_path / "b.txt.gz").read_bytes()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("broken pipe, or so")])
def test_a_stream_that_is_interrupted_leaves_nothing(tmp_path, monkeypatch, error):
    class Stream(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 100:
                raise error
            return super().read(10)

    path = tmp_path / "input.txt.gz"
    path.write_bytes(b"before")
    with pytest.raises((KeyboardInterrupt, CorpusError)) as caught:
        spool(Stream(b"some text\n" * 100), path)
    if isinstance(error, OSError):
        assert "ELMO-E246" in str(caught.value) and "broken pipe" in str(caught.value)
    assert [child.name for child in tmp_path.iterdir()] == ["input.txt.gz"]
    assert path.read_bytes() == b"before"
