from __future__ import annotations

import gzip

import pytest

from spacy_elmo.errors import CorpusError
from spacy_elmo.lm.characters import BEGIN_SENTENCE, END_SENTENCE
from spacy_elmo.pretraining import vocabulary as vocabulary_module
from spacy_elmo.pretraining.vocabulary import BEGIN_ID, END_ID, SPECIALS, UNKNOWN_ID, Vocabulary

TEXT = [["b", "a", "c"], ["b", "c", "a"], ["b", "d"]]


def test_words_by_falling_frequency_ties_by_the_word():
    assert Vocabulary.count(TEXT, 100).words == [*SPECIALS, "b", "a", "c", "d"]


def test_rare_words_are_left_out():
    assert Vocabulary.count(TEXT, 100, min_count=2).words == [*SPECIALS, "b", "a", "c"]


def test_the_size_includes_the_specials():
    assert Vocabulary.count(TEXT, 5).words == [*SPECIALS, "b", "a"]
    assert len(Vocabulary.count(TEXT, 3)) == 3


def test_ids():
    vocabulary = Vocabulary.count(TEXT, 100)
    assert [vocabulary.id_of(word) for word in ("b", "a", "d", "new")] == [3, 4, 6, UNKNOWN_ID]
    assert vocabulary.id_of(BEGIN_SENTENCE) == BEGIN_ID
    assert vocabulary.id_of(END_SENTENCE) == END_ID


@pytest.mark.parametrize("special", SPECIALS)
def test_text_that_spells_a_special_is_an_unknown_word(special):
    vocabulary = Vocabulary.count([[special, special, "a"]], 100)
    assert vocabulary.words == [*SPECIALS, "a"]
    assert vocabulary.id_of(special) == UNKNOWN_ID


def test_round_trip_with_the_same_bytes(tmp_path):
    vocabulary = Vocabulary.count([["naïve", "#", "東京"]], 100)
    first, second = tmp_path / "a.txt.gz", tmp_path / "b.txt.gz"
    vocabulary.save(first)
    Vocabulary.load(first).save(second)
    assert first.read_bytes() == second.read_bytes()
    assert Vocabulary.load(second).words == vocabulary.words


def test_a_plain_file_with_windows_line_ends(tmp_path):
    path = tmp_path / "vocabulary.txt"
    path.write_bytes("\r\n".join([*SPECIALS, "a", ""]).encode())
    assert Vocabulary.load(path).words == [*SPECIALS, "a"]


@pytest.mark.parametrize(("words", "named"), [([*SPECIALS, "a", "b", "a"], "'a'"), (["a", "b"], "'a', 'b'"), ([], "")])
def test_what_is_no_vocabulary(words, named):
    with pytest.raises(CorpusError, match="E204") as caught:
        Vocabulary(words)
    assert named in str(caught.value)


def test_a_missing_or_broken_file(tmp_path):
    path = tmp_path / "vocabulary.txt.gz"
    with pytest.raises(CorpusError, match="E201"):
        Vocabulary.load(path)
    path.write_bytes(gzip.compress(b"<S>\n</S>\n<UNK>\n")[:-4])
    with pytest.raises(CorpusError, match="E201"):
        Vocabulary.load(path)


def test_counting_is_bounded(monkeypatch):
    monkeypatch.setattr(vocabulary_module, "_MAX_TYPES_COUNTED", 20)
    text = ([f"rare{number}", "often"] for number in range(1000))
    assert Vocabulary.count(text, 4).words == [*SPECIALS, "often"]
