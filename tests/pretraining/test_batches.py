from __future__ import annotations

import itertools
import random
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from spacy_elmo.errors import CorpusError
from spacy_elmo.lm.characters import BEGIN_SENTENCE, END_SENTENCE, Word
from spacy_elmo.pretraining import batches as batches_module
from spacy_elmo.pretraining import corpus as corpus_module
from spacy_elmo.pretraining.batches import Window, group_by_words, sentence_batches, stream_batches
from spacy_elmo.pretraining.corpus import Corpus, Sentence, find_shards
from spacy_elmo.pretraining.feeding import read_batches
from spacy_elmo.pretraining.settings import TrainingSettings
from spacy_elmo.pretraining.vocabulary import Vocabulary
from tests.pretraining.small_runs import small_run, write_corpus

SHARDS, LINES = 4, 30


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """Every word tells its shard, line and place."""
    monkeypatch.setattr(corpus_module, "BLOCK_LINES", 4)
    for shard in range(SHARDS):
        lines = (" ".join(f"{shard}.{line}.{word}" for word in range(line % 7 + 1)) for line in range(LINES))
        (tmp_path / f"{shard}.txt").write_text("".join(f"{line}\n" for line in lines))
    return Corpus(find_shards([tmp_path]))


def settings_of(**settings: int | str) -> TrainingSettings:
    return TrainingSettings(**{"buffer_words": 60, "batch_words": 12, "parts": 1, "seed": 3, "unroll": 4, **settings})


def epoch_of(corpus: Corpus, epoch: int = 0, part: int = 0, **settings: int | str) -> list[list[Sentence]]:
    return list(sentence_batches(corpus, settings_of(**settings), epoch, part))


def all_words(sentences: Iterable[Sentence]) -> Counter[str]:
    return Counter(itertools.chain.from_iterable(sentences))


def shard_of(word: str) -> str:
    return word.split(".", 1)[0]


# Sentences.


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("epoch", [0, 1])
def test_everything_is_read_once_an_epoch_over_all_parts(corpus: Corpus, parts: int, epoch: int) -> None:
    of_parts = [
        list(itertools.chain.from_iterable(epoch_of(corpus, epoch, part, parts=parts))) for part in range(parts)
    ]
    assert sorted(itertools.chain.from_iterable(of_parts)) == sorted(corpus.sentences())
    sizes = [len(sentences) for sentences in of_parts]
    assert max(sizes) - min(sizes) <= corpus_module.BLOCK_LINES
    assert all(not all_words(one) & all_words(other) for one, other in itertools.combinations(of_parts, 2))


def test_the_order_follows_seed_epoch_and_part(corpus: Corpus) -> None:
    first = epoch_of(corpus, parts=2)
    assert epoch_of(corpus, parts=2) == first
    others = [
        epoch_of(corpus, epoch=1, parts=2),
        epoch_of(corpus, part=1, parts=2),
        epoch_of(corpus, parts=2, seed=4),
        epoch_of(corpus, parts=1),
    ]
    assert all(other != first for other in others)


def test_shards_come_one_after_another_in_another_order_each_epoch(corpus: Corpus) -> None:
    """As far as buffers do not mix them."""
    orders = set()
    for epoch in range(6):
        words = itertools.chain.from_iterable(itertools.chain.from_iterable(epoch_of(corpus, epoch, buffer_words=1)))
        shards = [shard for shard, _ in itertools.groupby(map(shard_of, words))]
        assert sorted(shards) == [str(shard) for shard in range(SHARDS)]
        orders.add(tuple(shards))
    assert len(orders) > 2


def test_a_buffer_is_shuffled_within_itself(corpus: Corpus) -> None:
    in_order = epoch_of(corpus, buffer_words=1)
    text = [sentence for batch in in_order for sentence in batch]
    buffers = list(group_by_words(text, 60))
    found = iter([sentence for batch in epoch_of(corpus) for sentence in batch])
    moved = 0
    for buffer in buffers:
        shuffled = list(itertools.islice(found, len(buffer)))
        assert sorted(shuffled) == sorted(buffer)
        moved += shuffled != buffer
    assert next(found, None) is None and moved > len(buffers) // 2


def test_batches_hold_sentences_of_like_length_and_no_more_words_than_they_may(corpus: Corpus) -> None:
    batches = epoch_of(corpus, buffer_words=10**6, batch_words=20)
    spreads = [max(map(len, batch)) - min(map(len, batch)) for batch in batches]
    assert max(spreads) <= 1 and all(sum(map(len, batch)) <= 20 for batch in batches)
    assert [len(batch[0]) for batch in batches] != sorted(len(batch[0]) for batch in batches)


def test_the_parts_have_sentences_of_like_length_at_each_step(tmp_path: Path) -> None:
    """Though one has more batches in a buffer than another, and all have many buffers."""
    chance = random.Random(1)
    lines = [" ".join(["w"] * chance.randint(1, 60)) for _ in range(40 * corpus_module.BLOCK_LINES)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    corpus = Corpus(find_shards([tmp_path]))
    parts = [epoch_of(corpus, part=part, parts=3, buffer_words=4000, batch_words=200) for part in range(3)]
    lengths = [[statistics.mean(map(len, batch)) for batch in batches] for batches in parts]
    assert len({len(batches) for batches in parts}) > 1 and min(map(len, parts)) > 60
    apart = [max(of_step) - min(of_step) for of_step in zip(*lengths)]
    assert statistics.mean(apart) < 4 and statistics.pstdev(lengths[0]) > 12
    assert statistics.mean(abs(one - two) for one, two in itertools.pairwise(lengths[0])) > 12


def test_a_sentence_longer_than_a_batch_is_a_batch(corpus: Corpus) -> None:
    batches = epoch_of(corpus, batch_words=5)
    assert {len(batch) for batch in batches if len(batch[0]) > 5} == {1}
    assert all(batches)


def test_ties_of_length_are_shuffled(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{number}\n" for number in range(100)))
    corpus = Corpus(find_shards([tmp_path]))
    batches = epoch_of(corpus, buffer_words=1000, batch_words=10)
    assert {len(batch) for batch in batches} == {10}
    assert any(len({int(word[0]) // 10 for word in batch}) > 3 for batch in batches)


def test_text_that_is_empty_has_no_batch(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n \n")
    corpus = Corpus(find_shards([tmp_path]))
    assert epoch_of(corpus) == [] and list(stream_batches(corpus, settings_of(), 0, 0)) == []


@pytest.mark.parametrize("words", [1, 3, 100])
def test_groups_keep_the_order(words: int) -> None:
    sentences = [["a"], ["b", "c"], [], ["d"] * 5, ["e"]]
    groups = list(group_by_words(sentences, words))
    assert list(itertools.chain.from_iterable(groups)) == sentences
    assert all(groups) and all(sum(map(len, group)) >= words for group in groups[:-1])
    assert all(sum(map(len, group[:-1])) < words for group in groups)


# Streams.


def streams_of(corpus: Corpus, epoch: int = 0, part: int = 0, **settings: int | str) -> list[list[Window]]:
    """By stream, its windows."""
    batches = list(stream_batches(corpus, settings_of(**settings), epoch, part))
    return [list(windows) for windows in zip(*batches)]


def joined(windows: Iterable[Window], name: str) -> list[Word]:
    return [word for window in windows for word in getattr(window, name)]


def sentences_in(stream: list[Window]) -> list[Sentence]:
    """Whole sentences of a stream; the last one may be cut off."""
    sentences: list[Sentence] = []
    for read in joined(stream, "forward_read"):
        if read is BEGIN_SENTENCE:
            sentences.append([])
        else:
            sentences[-1].append(str(read))
    return sentences[:-1]


def test_every_stream_of_a_batch_has_a_window_of_full_length(corpus: Corpus) -> None:
    batches = list(stream_batches(corpus, settings_of(), 0, 0))
    assert len(batches) > 20
    for batch in batches:
        assert len(batch) == 3
        assert {len(words) for window in batch for words in window} == {4}


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("streams", [1, 3])
def test_every_word_is_read_once_but_for_the_rest_at_the_end(corpus: Corpus, parts: int, streams: int) -> None:
    longest = max(map(len, corpus.sentences()))
    read: Counter[Word] = Counter()
    for part in range(parts):
        found = streams_of(corpus, part=part, parts=parts, batch_words=4 * streams)
        read.update(word for stream in found for word in joined(stream, "forward_predicted"))
    ends = read.pop(END_SENTENCE)
    everything = all_words(corpus.sentences())
    assert set(read.values()) == {1} and read.keys() <= everything.keys()
    # What is left in a stream: less than a window, and the sentence that came last.
    assert 0 <= len(everything) - len(read) <= parts * streams * (4 + longest)
    assert ends <= SHARDS * LINES


@pytest.mark.parametrize("unroll", [1, 3, 10])
def test_a_stream_is_sentence_after_sentence_in_both_directions(corpus: Corpus, unroll: int) -> None:
    for stream in streams_of(corpus, unroll=unroll, batch_words=3 * unroll):
        sentences = sentences_in(stream)
        assert len(sentences) > 5
        expected: dict[str, list[Word]] = {name: [] for name in Window._fields}
        for sentence in sentences:
            expected["forward_read"] += [BEGIN_SENTENCE, *sentence]
            expected["forward_predicted"] += [*sentence, END_SENTENCE]
            expected["backward_read"] += [END_SENTENCE, *reversed(sentence)]
            expected["backward_predicted"] += [*reversed(sentence), BEGIN_SENTENCE]
        for name, words in expected.items():
            assert joined(stream, name)[: len(words)] == words, name


def test_both_directions_of_a_stream_read_the_same_sentences(corpus: Corpus) -> None:
    for stream in streams_of(corpus):
        forward = [word for word in joined(stream, "forward_predicted") if word is not END_SENTENCE]
        backward = [word for word in joined(stream, "backward_predicted") if word is not BEGIN_SENTENCE]
        # Both are cut at the same place, which may be in the middle of a sentence.
        assert len(Counter(forward) - Counter(backward)) <= 7
        assert [str(word).rsplit(".", 1)[0] for word in forward] == [str(word).rsplit(".", 1)[0] for word in backward]


def test_sentences_of_all_streams_are_those_of_the_shuffled_text_in_order(corpus: Corpus) -> None:
    """Whichever stream needs one takes the next."""
    buffers = batches_module._shuffled_buffers(corpus, settings_of(), 0, 0)
    text = (sentence for buffer in buffers for sentence in buffer)
    waiting: list[list[Word]] = [[], [], []]
    for batch in stream_batches(corpus, settings_of(), 0, 0):
        for words, window in zip(waiting, batch):
            while len(words) < 4:
                words += [*next(text), END_SENTENCE]
            assert list(window.forward_predicted) == words[:4]
            del words[:4]


def test_streams_follow_seed_epoch_and_part(corpus: Corpus) -> None:
    first = streams_of(corpus, parts=2)
    assert streams_of(corpus, parts=2) == first
    others = [
        streams_of(corpus, epoch=1, parts=2),
        streams_of(corpus, part=1, parts=2),
        streams_of(corpus, seed=4, parts=2),
    ]
    assert all(other != first for other in others)


# Steps.


@pytest.mark.parametrize("objective", ["sentences", "streams"])
@pytest.mark.parametrize("done", [1, 7])
def test_a_step_is_the_same_after_those_before_it_were_passed_over(corpus: Corpus, objective: str, done: int) -> None:
    vocabulary = Vocabulary.count(corpus.sentences(), 1000)
    settings = settings_of(objective=objective, parts=2)
    whole = list(read_batches(corpus, settings, vocabulary, [0, 1], 1))
    rest = list(read_batches(corpus, settings, vocabulary, [0, 1], 1, done))
    assert len(rest) == len(whole) - done
    for one, other in zip(whole[done:], rest, strict=True):
        assert one.keys() == other.keys()
        for part in one:
            assert one[part].words == other[part].words and one[part].read.equal(other[part].read)


def test_parts_are_read_the_same_by_one_process_and_by_several(corpus: Corpus) -> None:
    vocabulary = Vocabulary.count(corpus.sentences(), 1000)
    settings = settings_of(parts=3)
    together = list(read_batches(corpus, settings, vocabulary, [0, 1, 2]))
    for part in range(3):
        alone = [step[part].words for step in read_batches(corpus, settings, vocabulary, [part])]
        assert alone == [step[part].words for step in together if part in step]


def test_steps_go_on_until_the_longest_part_is_at_its_end(corpus: Corpus) -> None:
    vocabulary = Vocabulary.count(corpus.sentences(), 1000)
    settings = settings_of(parts=3)
    steps = list(read_batches(corpus, settings, vocabulary, [0, 1, 2]))
    counts = [len(epoch_of(corpus, 0, part, parts=3)) for part in range(3)]
    assert len(steps) == max(counts)
    assert [sum(part in step for step in steps) for part in range(3)] == counts


def test_text_too_short_for_streams_is_named(tmp_path: Path) -> None:
    text = write_corpus(tmp_path / "text", sentences=6)
    run = small_run(tmp_path / "run", text, objective="streams", unroll=20, batch_words=2000)
    run.begin(resume=False)
    with pytest.raises(CorpusError, match="E271.*20 words for each of 100 streams"):
        run.train()
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("objective", ["sentences", "streams"])
def test_a_corpus_without_a_sentence_is_named(tmp_path: Path, objective: str) -> None:
    (tmp_path / "a.txt").write_text("\n\n")
    with pytest.raises(CorpusError, match="E203"):
        small_run(tmp_path / "run", tmp_path / "a.txt", objective=objective).begin(resume=False)
