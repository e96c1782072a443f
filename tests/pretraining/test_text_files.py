"""Lines of text files in all their forms; what is broken, hostile or changed under way is named."""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
import tracemalloc
from itertools import islice
from pathlib import Path

import pytest

from spacy_elmo.errors import CorpusError
from spacy_elmo.pretraining import text_files
from spacy_elmo.pretraining.text_files import SUFFIXES, FileStates, TextFile, read_lines

try:
    import zstandard
except ImportError:
    zstandard = None  # type: ignore[assignment]

needs_zstandard = pytest.mark.skipif(zstandard is None, reason="needs zstandard: pip install 'spacy-elmo[zst]'")
PACKED = ["", ".gz", pytest.param(".zst", marks=needs_zstandard)]


def pack(data: bytes, suffix: str) -> bytes:
    if suffix.endswith(".gz"):
        return gzip.compress(data)
    return zstandard.ZstdCompressor().compress(data) if suffix.endswith(".zst") else data


def write(path: Path, text: str | bytes) -> Path:
    data = text.encode("utf-8") if isinstance(text, str) else text
    path.write_bytes(pack(data, path.name))
    return path


def words(path: Path) -> list[list[str]]:
    return [line.split() for line in read_lines(path)]


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("text", ["one two\nthree", "\ufeffone two\r\nthree\r\n", "one\u2028two\nthree\n"])
def test_lines_of_text(tmp_path, packed, text):
    """Only a newline ends a line; any whitespace separates words."""
    assert words(write(tmp_path / f"a.txt{packed}", text)) == [["one", "two"], ["three"]]


@pytest.mark.parametrize("packed", PACKED)
def test_lines_of_json(tmp_path, packed):
    records = [{"tokens": ["one", "zwölf"]}, {"text": "left out", "tokens": ["a"], "more": [1]}, {"tokens": []}]
    text = "\ufeff" + "\r\n".join(json.dumps(record) for record in records) + "\n\n"
    assert words(write(tmp_path / f"a.jsonl{packed}", text)) == [["one", "zwölf"], ["a"], [], []]


@pytest.mark.parametrize("name", ["a.ndjson", "a.JSONL", "a.ndjson.gz"])
def test_other_names_of_lines_of_json(tmp_path, name):
    assert words(write(tmp_path / name, '{"tokens": ["one"]}\n')) == [["one"]]


def test_whitespace_in_tokens_separates_words(tmp_path):
    path = write(tmp_path / "a.jsonl", json.dumps({"tokens": ["New York", "", " ", "a\nb", "\u2028", "c"]}))
    assert words(path) == [["New", "York", "a", "b", "c"]]


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[1, 2]",
        "3",
        '"text"',
        "null",
        "{}",
        '{"tokens": null}',
        '{"tokens": "a b"}',
        '{"tokens": {"a": 1}}',
        '{"tokens": ["a", 1]}',
        '{"tokens": ["a", null]}',
        '{"tokens": [["a"]]}',
        '{"tokens": ["\\ud800"]}',
        '{"text": 3}',
        '{"tokens": ["a"]',
        '{"tokens": ["a"]} {"tokens": ["b"]}',
        "[" * 100_000,
        '{"tokens": ' + "[" * 100_000,
        '{"n": ' + "1" * 5000 + "}",
    ],
)
def test_what_is_no_record_names_file_and_line(tmp_path, line):
    path = write(tmp_path / "a.jsonl", '{"tokens": ["fine"]}\n' + line + "\n")
    with pytest.raises(CorpusError, match=r"E242.*a\.jsonl, line 2") as caught:
        words(path)
    assert len(str(caught.value)) < 1000


def test_raw_text_names_the_command_that_splits_it(tmp_path):
    path = write(tmp_path / "my text.jsonl", '{"text": "One sentence."}\n')
    with pytest.raises(CorpusError, match=r"E243.*line 1.*python -m spacy elmo pretrain --tokenizer en") as caught:
        words(path)
    assert f"tokenize '{path}' DIRECTORY" in str(caught.value)


def test_a_line_of_json_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_LONGEST_LINE", 32)
    line = '{"tokens": ["one"]}\n'
    path = write(tmp_path / "a.jsonl", line + json.dumps({"tokens": ["word"] * 20}) + "\n" + line)
    with pytest.raises(CorpusError, match="E242.*line 2.*longer than 32 bytes"):
        words(path)


def test_not_utf8_names_file_and_line(tmp_path):
    for name, fine in (("a.txt", b"fine\n"), ("a.jsonl", b'{"tokens": ["a"]}\n')):
        path = write(tmp_path / name, fine * 2 + b"caf\xe9 noir\n")
        with pytest.raises(CorpusError, match=rf"E202.*{name}, line 3.*0xe9"):
            words(path)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_other_encodings_that_look_like_utf8(tmp_path, encoding):
    path = write(tmp_path / "a.txt", "plain words\n".encode(encoding))
    with pytest.raises(CorpusError, match=r"E241.*a\.txt"):
        words(path)


@pytest.mark.parametrize("packed", [".gz", pytest.param(".zst", marks=needs_zstandard)])
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.999])
def test_a_compressed_file_that_is_cut_off(tmp_path, packed, kept):
    whole = pack("".join(f"line number {n * 7919}\n" for n in range(5000)).encode(), packed)
    path = tmp_path / f"a.txt{packed}"
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(CorpusError, match=rf"E201.*a\.txt{packed} cannot be read beyond line"):
        words(path)


@pytest.mark.parametrize("packed", PACKED)
def test_an_empty_file_has_no_lines(tmp_path, packed):
    (tmp_path / f"a.txt{packed}").touch()
    assert words(tmp_path / f"a.txt{packed}") == []
    assert words(write(tmp_path / f"b.txt{packed}", "")) == []


@pytest.mark.parametrize("packed", [".gz", pytest.param(".zst", marks=needs_zstandard)])
def test_files_put_one_after_another(tmp_path, packed):
    path = tmp_path / f"a.txt{packed}"
    path.write_bytes(pack(b"one\ntw", packed) + pack(b"", packed) + pack(b"o\nthree\n", packed))
    assert words(path) == [["one"], ["two"], ["three"]]


@needs_zstandard
def test_zstd_passes_over_frames_that_hold_nothing(tmp_path):
    skipped = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"xyz"
    (tmp_path / "a.txt.zst").write_bytes(skipped + pack(b"one\n", ".zst") + skipped)
    assert words(tmp_path / "a.txt.zst") == [["one"]]


def test_without_zstandard(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "a.txt.zst").touch()
    with pytest.raises(CorpusError, match=r"E240.*pip install 'spacy-elmo\[zst\]'"):
        words(tmp_path / "a.txt.zst")


@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if zstandard or not suffix.endswith(".zst")])
def test_junk_gives_words_or_a_named_error(tmp_path, suffix):
    chance = random.Random(suffix)
    fine = pack(b'{"tokens": ["a b", "c"]}\n' * 300, suffix)
    for trial in range(300):
        if trial % 3 == 0:
            junk = chance.randbytes(chance.choice([1, 10, 1000]))
        else:
            broken = bytearray(fine)
            for _ in range(chance.choice([1, 5])):
                broken[chance.randrange(len(broken))] = chance.randrange(256)
            junk = bytes(broken) if trial % 3 == 1 else pack(chance.randbytes(200), suffix)
        path = tmp_path / f"a{suffix}"
        path.write_bytes(junk)
        try:
            assert all(isinstance(word, str) for line in words(path) for word in line)
        except CorpusError as error:
            assert "[ELMO-E2" in str(error) and f"a{suffix}" in str(error)


@pytest.mark.parametrize("inner", ["a.txt.gz", pytest.param("a.txt.zst", marks=needs_zstandard)])
def test_a_file_compressed_twice_is_no_text(tmp_path, inner):
    path = write(tmp_path / inner, pack(b"text\n" * 100, inner))
    with pytest.raises(CorpusError, match="E202|E241"):
        words(path)


@needs_zstandard
def test_a_zstd_bomb_unfolds_bit_by_bit(tmp_path):
    """Half a gigabyte in one line of a small file."""
    packer = zstandard.ZstdCompressor().compressobj()
    block = b"a" * 2**24
    path = tmp_path / "a.txt.zst"
    path.write_bytes(b"".join([*(packer.compress(block) for _ in range(32)), packer.flush()]))
    assert path.stat().st_size < 2**17
    tracemalloc.start()
    try:
        pieces = list(map(len, islice(TextFile(path).pieces(), 10)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(pieces) > 70_000_000
    assert peak < 2**27


# Lines of very many bytes.


def test_a_line_without_end_is_held_in_pieces_only(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_LONGEST_LINE", 64)
    expected = [f"wörd{number}" for number in range(100)]
    path = write(tmp_path / "a.txt", " ".join(expected) + "\nnext\n" + "\xff")
    pieces = list(TextFile(path).pieces())
    assert max(map(len, pieces)) <= 128
    assert [word for line in words(path) for word in line] == [*expected, "next", "\xff"]


def test_a_word_longer_than_a_piece_is_cut_between_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_LONGEST_LINE", 10)
    path = write(tmp_path / "a.txt", "𝄞é" * 30 + "\nend\n")
    assert "".join(read_lines(path)) == "𝄞é" * 30 + "\nend\n"


def test_the_line_of_an_error_is_right_after_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_LONGEST_LINE", 8)
    path = write(tmp_path / "a.txt", b"one two three four\nfive\n\xff\n")
    with pytest.raises(CorpusError, match="line 3"):
        list(read_lines(path))


def test_where_in_a_file_a_piece_is(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_LONGEST_LINE", 8)
    file = TextFile(write(tmp_path / "a.txt", "a\none two three\n\nb"))
    found = [(piece, file.line, file.continues, file.line_bytes) for piece in file.pieces()]
    assert found == [
        (b"a\n", 1, False, 2),
        (b"one two ", 2, False, 8),
        (b"three\n", 2, True, 14),
        (b"\n", 3, False, 1),
        (b"b", 4, False, 1),
    ]


# Files that change.


def test_a_file_that_stays_as_it_is(tmp_path):
    path = write(tmp_path / "a.txt", "a\n")
    states = FileStates()
    checksum = states.checksum(path)
    states.check(path)
    assert states.checksum(path) == checksum and len(checksum) == 64


@pytest.mark.parametrize("change", ["other size", "other time", "other file"])
def test_a_file_that_is_another_now(tmp_path, change):
    path = write(tmp_path / "a.txt", "a\n")
    states = FileStates()
    states.check(path)
    change_file(path, change)
    with pytest.raises(CorpusError, match=r"E245.*a\.txt"):
        states.check(path)


@pytest.mark.parametrize("change", ["other time", "other file"])
def test_the_same_bytes_in_another_file_are_the_same_text(tmp_path, change):
    path = write(tmp_path / "a.txt", "a\n")
    states = FileStates()
    states.checksum(path)
    change_file(path, change, text="a\n")
    states.check(path)
    change_file(path, change, text="b\n")
    with pytest.raises(CorpusError, match="E245"):
        states.check(path)
    with pytest.raises(CorpusError, match="E245"):
        states.checksum(path)


def test_a_file_that_is_gone(tmp_path):
    path = write(tmp_path / "a.txt", "a\n")
    states = FileStates()
    states.check(path)
    path.unlink()
    for act in (states.check, states.checksum):
        with pytest.raises(CorpusError, match=r"E201.*a\.txt"):
            act(path)


def change_file(path: Path, change: str, text: str = "b\n") -> None:
    before = path.stat()
    if change == "other size":
        path.write_text(text * 2)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "other time":
        path.write_text(text)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    else:
        fresh = path.with_name("fresh")
        fresh.write_text(text)
        os.utime(fresh, ns=(before.st_atime_ns, before.st_mtime_ns))
        os.replace(fresh, path)
