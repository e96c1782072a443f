from __future__ import annotations

import gzip
import random
import warnings

import pytest

from spacy_elmo.errors import CorpusError, ElmoWarning, WeightsError
from spacy_elmo.lm.characters import BEGIN_SENTENCE, END_SENTENCE
from spacy_elmo.pretraining.vocabulary import BEGIN_ID, END_ID, SPECIALS, UNKNOWN_ID, Vocabulary
from spacy_elmo.pretraining.word_counts import WordCounts

TEXT = [["b", "a", "c"], ["b", "c", "a"], ["b", "d"]]


def test_words_by_falling_frequency_ties_by_the_word():
    assert Vocabulary.count(TEXT, 100).words == [*SPECIALS, "b", "a", "c", "d"]


def test_rare_words_are_left_out():
    assert Vocabulary.count(TEXT, 100, min_count=2).words == [*SPECIALS, "b", "a", "c"]


def test_the_size_includes_the_specials():
    assert Vocabulary.count(TEXT, 5).words == [*SPECIALS, "b", "a"]
    assert len(Vocabulary.count(TEXT, 4)) == 4


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
    with pytest.raises(WeightsError, match="E120"):
        Vocabulary.load(path)
    path.write_bytes(gzip.compress(b"<S>\n</S>\n<UNK>\n")[:-4])
    with pytest.raises(WeightsError, match="E140"):
        Vocabulary.load(path)


@pytest.mark.parametrize(("max_words", "min_count"), [(3, 1), (2, 1), (100, 4)])
def test_limits_that_leave_no_word(max_words, min_count):
    with pytest.raises(CorpusError, match="E247.*most frequent of 4 occurs 3 times"):
        Vocabulary.count(TEXT, max_words, min_count)


def test_text_of_nothing_but_specials_leaves_no_word():
    with pytest.raises(CorpusError, match="E247"):
        Vocabulary.count([["<UNK>", "</S>"]], 100)


def test_no_text_has_no_words():
    assert Vocabulary.count([], 100).words == [*SPECIALS]


def test_a_word_that_vocabulary_files_cannot_hold(tmp_path):
    vocabulary = Vocabulary.count([["!!!MAXTERMID", "!!!MAXTERMID", "a", "b"]], 100)
    vocabulary.save(tmp_path / "vocabulary.txt.gz")
    assert Vocabulary.load(tmp_path / "vocabulary.txt.gz").words == vocabulary.words == [*SPECIALS, "a", "b"]
    with pytest.raises(WeightsError, match="E141"):
        Vocabulary([*SPECIALS, "a\n"]).save(tmp_path / "vocabulary.txt.gz")


# Files of bilm-tf.


def test_a_file_as_bilm_tf_reads_it(tmp_path):
    path = tmp_path / "vocab-2016-09-10.txt"
    path.write_text("<S>\n</S>\n<UNK>\n!!!MAXTERMID\n the \n,\n", encoding="utf-8")
    assert Vocabulary.load(path).words == [*SPECIALS, "the", ","]


@pytest.mark.parametrize(
    ("lines", "code", "named"),
    [
        (["</S>", "<S>", "<UNK>", "a"], "E204", "'</S>', '<S>'"),
        (["<UNK>", "<S>", "</S>", "a"], "E204", "'<UNK>', '<S>'"),
        (["a", "b", "c"], "E204", "'a', 'b', 'c'"),
        (["<S>", "</S>", "a", "<UNK>"], "E204", "'</S>', 'a'"),
        ([*SPECIALS, "a", "b", "a"], "E204", "'a'"),
        ([*SPECIALS, "a", "<S>"], "E204", "'<S>'"),
        ([*SPECIALS, "a", "", "b"], "E248", "entry 5 is ''"),
        ([*SPECIALS, "a", "b", "", ""], "E248", "entry 6 is ''"),
        ([*SPECIALS, "the 1234"], "E248", "entry 4 is 'the 1234'"),
        ([*SPECIALS, "the\t1234"], "E248", "entry 4"),
    ],
)
def test_a_file_that_cannot_be_right(tmp_path, lines, code, named):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with pytest.raises(CorpusError, match=code) as caught:
        Vocabulary.load(path)
    assert named in str(caught.value)


# Whether given words fall by frequency.


def zipf(n_words: int, seed: int = 0, tokens: int = 20_000) -> WordCounts:
    chance = random.Random(seed)
    counts = WordCounts()
    names = [f"w{rank}" for rank in range(n_words)]
    counts.add([chance.choices(names, [1 / (rank + 1) for rank in range(n_words)], k=tokens)])
    return counts


def test_words_that_fall_by_frequency_are_in_order():
    counts, other = zipf(1000), zipf(1000, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vocabulary = Vocabulary.of_counts(counts, 1000)
        vocabulary.require_order(counts)
        vocabulary.require_order(other)
        Vocabulary([*SPECIALS]).require_order(counts)
        Vocabulary([*SPECIALS, "not", "in", "it"]).require_order(counts)


@pytest.mark.parametrize(("order", "share"), [("alphabet", "[4-6][0-9]%"), ("reverse", "100%")])
def test_words_in_another_order_are_warned_of(order, share):
    counts = zipf(1000)
    words = counts.ranked()
    words = sorted(words, key=lambda word: word[::-1]) if order == "alphabet" else words[::-1]
    with pytest.warns(ElmoWarning, match=f"W210.*{share}"):
        Vocabulary([*SPECIALS, *words]).require_order(counts)


def test_real_text_of_other_domains_is_in_order(data_dir):
    from spacy_elmo.pretraining.corpus import Corpus

    counts, other = WordCounts(), WordCounts()
    counts.add(Corpus([data_dir / "corpus_en" / "test.txt.gz"]).sentences())
    other.add(Corpus([data_dir / "corpus_en" / "valid.txt.gz"]).sentences())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Vocabulary.of_counts(counts, 10**6).require_order(other)
