from __future__ import annotations

import gzip
import time
from itertools import chain
from pathlib import Path

import pytest

from spacy_elmo.errors import CorpusError
from spacy_elmo.pretraining import corpus as corpus_module
from spacy_elmo.pretraining.corpus import Corpus, Position, find_shards, text_checksum
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
    return Corpus(find_shards([directory]), buffer_words=50)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_reads_plain_and_gzip(tmp_path, name):
    corpus = Corpus.find([write(tmp_path / name, "one two\nthree\n")])
    assert list(corpus.sentences()) == [["one", "two"], ["three"]]


def test_a_directory_gives_its_text_files_in_order(tmp_path):
    for name in ("b.txt", "a.txt.gz", "notes.md", ".hidden.txt"):
        write(tmp_path / name, "x\n")
    (tmp_path / "folder.txt").mkdir()
    assert [path.name for path in Corpus.find([tmp_path]).shards] == ["a.txt.gz", "b.txt"]


def test_glob_patterns_and_repeated_sources(tmp_path):
    for name in ("b.txt", "deep/a.txt", "c.log"):
        write(tmp_path / name, "x\n")
    found = Corpus.find([f"{tmp_path}/**/*.txt", tmp_path / "b.txt"]).shards
    assert sorted(path.name for path in found) == ["a.txt", "b.txt"]


def test_a_file_whose_name_looks_like_a_pattern(tmp_path):
    path = write(tmp_path / "part[1].txt", "x\n")
    assert Corpus.find([path]).shards == [path]


@pytest.mark.parametrize("source", ["missing.txt", "*.txt", "."])
def test_nothing_found(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError, match="E200.*" + source.replace("*", r"\*").replace(".", r"\.")):
        Corpus.find([source])


def test_not_utf8_names_file_and_line(tmp_path):
    path = write(tmp_path / "a.txt", b"fine\nfine\ncaf\xe9 noir\n")
    with pytest.raises(CorpusError, match=r"E202.*a\.txt, line 3.*0xe9"):
        list(Corpus.find([path]).sentences())


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


@pytest.mark.parametrize("text", ["", "\n \n\t\r\n"])
def test_empty_corpus(tmp_path, text):
    corpus = Corpus.find([write(tmp_path / "a.txt", text)])
    with pytest.raises(CorpusError, match=r"E203.*a\.txt"):
        list(corpus.batches(10, seed=0, epochs=1))


def test_empty_lines_are_counted(tmp_path):
    corpus = Corpus.find([write(tmp_path / "a.txt", "\nx y\n\n  \nz\n")])
    assert list(corpus.sentences()) == [["x", "y"], ["z"]]
    assert (corpus.report.sentences, corpus.report.words, corpus.report.empty_lines) == (2, 3, 3)


@pytest.mark.parametrize("text", ["\ufeffone two\r\nthree\r\n", "\ufeffone two\nthree"])
def test_byte_order_mark_and_line_ends(tmp_path, text):
    assert list(Corpus.find([write(tmp_path / "a.txt", text)]).sentences()) == [["one", "two"], ["three"]]


def test_a_line_of_a_million_tokens_is_cut_and_counted(tmp_path):
    words = [f"t{number % 1000}" for number in range(1_000_000)]
    corpus = Corpus.find([write(tmp_path / "a.txt", "a b\n" + " ".join(words) + "\nc\n")])
    begin = time.perf_counter()
    sentences = list(corpus.sentences())
    assert time.perf_counter() - begin < 5
    assert list(chain.from_iterable(sentences)) == ["a", "b", *words, "c"]
    assert max(map(len, sentences)) == 200
    assert (corpus.report.cut_lines, corpus.report.words) == (1, 1_000_003)


def test_a_line_without_end_is_held_in_pieces_only(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "_LONGEST_LINE", 64)
    words = [f"wörd{number}" for number in range(100)]
    path = write(tmp_path / "a.txt", " ".join(words) + "\nnext\n" + "\xff")
    pieces = list(corpus_module.read_lines(path))
    assert max(len(piece.encode()) for piece in pieces) <= 128
    assert "".join(pieces).split() == [*words, "next", "\xff"]


def test_a_word_longer_than_a_piece_is_cut_between_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "_LONGEST_LINE", 10)
    path = write(tmp_path / "a.txt", "𝄞é" * 30 + "\nend\n")
    assert "".join(corpus_module.read_lines(path)) == "𝄞é" * 30 + "\nend\n"


def test_the_line_of_an_error_is_right_after_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "_LONGEST_LINE", 8)
    path = write(tmp_path / "a.txt", b"one two three four\nfive\n\xff\n")
    with pytest.raises(CorpusError, match="line 3"):
        list(corpus_module.read_lines(path))


def test_every_sentence_comes_once_an_epoch(tmp_path):
    corpus = numbered(tmp_path)
    expected = sorted(map(tuple, corpus.sentences()))
    batches = list(corpus.batches(20, seed=1, epochs=2))
    for epoch in range(2):
        got = [tuple(s) for position, batch in batches if position.epoch == epoch for s in batch]
        assert sorted(got) == expected


def test_batches_are_bounded_and_of_like_length(tmp_path):
    for _, batch in numbered(tmp_path).batches(20, seed=1, epochs=1):
        assert len(batch) == 1 or sum(map(len, batch)) <= 20
    spread = [max(map(len, b)) - min(map(len, b)) for _, b in numbered(tmp_path).batches(20, seed=1, epochs=1)]
    assert sum(spread) / len(spread) < 2


def test_the_order_depends_on_seed_and_epoch_only(tmp_path):
    corpus = numbered(tmp_path)
    first = list(corpus.batches(20, seed=1, epochs=2))
    assert list(numbered(tmp_path).batches(20, seed=1, epochs=2)) == first
    assert [b for _, b in corpus.batches(20, seed=2, epochs=2)] != [b for _, b in first]
    epochs = [[batch for position, batch in first if position.epoch == epoch] for epoch in range(2)]
    assert epochs[0] != epochs[1]


def test_going_on_from_any_position_gives_the_rest(tmp_path):
    corpus = numbered(tmp_path)
    batches = list(corpus.batches(20, seed=1, epochs=2))
    assert len({position.buffer for position, _ in batches}) > 2
    for done, (position, _) in enumerate(batches, 1):
        assert list(corpus.batches(20, seed=1, epochs=2, start=position)) == batches[done:]
    assert list(corpus.batches(20, seed=1, epochs=2, start=Position())) == batches


def test_no_more_than_a_buffer_is_read_ahead(tmp_path):
    corpus = Corpus([write(tmp_path / "a.txt", "a b c d e\n" * 10_000)], buffer_words=500)
    batches = corpus.batches(50, seed=0, epochs=1)
    next(batches)
    assert corpus.report.words == 500


def test_the_identity_sees_other_text_of_the_same_names_and_sizes(tmp_path):
    corpus = numbered(tmp_path / "one")
    assert Corpus(list(corpus.shards), max_words=7).identity() == corpus.identity()
    assert Corpus(corpus.shards[::-1]).identity() != corpus.identity()
    other = numbered(tmp_path / "other")
    assert other.identity() == corpus.identity()
    text = other.shards[1].read_text()
    write(other.shards[1], text.replace("s1l9 ", "s1l8 "))
    assert other.shards[1].stat().st_size == len(text.encode())
    assert other.identity() != corpus.identity()


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
