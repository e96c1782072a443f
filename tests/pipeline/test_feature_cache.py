"""Remembered layers: the right ones, bit by bit, within budgets, and whatever happens to processes and files."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.errors import ConfigError, PipelineError
from spacy_elmo.pipeline import feature_cache, feature_files
from spacy_elmo.pipeline.feature_cache import FeatureCache
from spacy_elmo.weights.fingerprint import fingerprint
from spacy_elmo.weights.native import load_bilm

LAYERS, WIDTH = 3, 8
SENTENCES = [["a", "bank"], ["they", "paid", "the", "bank"], ["a"], ["and", "so", "on"]]

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def layers_of(words: Sequence[str], scale: float = 1.0) -> np.ndarray:
    """(words, layers, width): depends on the words and their order; layer 0 is one vector twice, as that of a biLM."""
    seed = zlib.crc32(repr(list(words)).encode())
    layers = np.random.default_rng(seed).standard_normal((len(words), LAYERS, WIDTH), dtype=np.float32) * scale
    layers[:, 0, WIDTH // 2 :] = layers[:, 0, : WIDTH // 2]
    return layers


class Compute:
    """Compute layers, and keep what was asked for."""

    def __init__(self, function: Callable[[Sequence[str]], np.ndarray] = layers_of) -> None:
        self.function = function
        self.asked: list[list[str]] = []

    def __call__(self, sequences: Sequence[Sequence[str]]) -> np.ndarray:
        self.asked += [list(words) for words in sequences]
        return np.concatenate([np.zeros((0, LAYERS, WIDTH), np.float32), *map(self.function, sequences)])


def never(sequences: Sequence[Sequence[str]]) -> np.ndarray:
    raise LookupError(f"computed again: {sequences}")


def expected(sentences: Sequence[Sequence[str]]) -> np.ndarray:
    return Compute()(sentences)


def numbered(first: int, last: int, words: int = 4) -> list[list[str]]:
    return [[str(number)] * words for number in range(first, last)]


# What is remembered


def test_what_was_computed_is_not_computed_again():
    cache, compute = FeatureCache(), Compute()
    for sentences in (SENTENCES[:2], SENTENCES, SENTENCES[::-1]):
        assert np.array_equal(cache.look_up(sentences, "w", compute), expected(sentences))
    assert compute.asked == SENTENCES
    assert len(cache) == 4


def test_a_sequence_that_comes_twice_is_computed_once():
    cache, compute = FeatureCache(), Compute()
    sentences = [["a"], ["b", "c"], ["a"], ["a"]]
    assert np.array_equal(cache.look_up(sentences, "w", compute), expected(sentences))
    assert compute.asked == [["a"], ["b", "c"]]


def test_nothing_to_look_up_gives_no_words():
    assert FeatureCache().look_up([], "w", Compute()).shape == (0, LAYERS, WIDTH)


def test_a_sequence_without_words_is_remembered_too():
    cache, compute = FeatureCache(), Compute()
    for _ in range(2):
        assert np.array_equal(cache.look_up([[], ["a"], []], "w", compute), expected([["a"]]))
    assert compute.asked == [[], ["a"]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([["ab", "c"]], [["a", "bc"]]),
        ([["a b"]], [["a", "b"]]),
        ([["a", "b"]], [["b", "a"]]),
        ([["a", "b"]], [["a"], ["b"]]),
        ([["a"]], [["a", ""]]),
        ([[]], [[""]]),
        ([["a\xff"]], [["a", ""]]),
        ([["\U0001f600"]], [["\ud83d\ude00"]]),
        ([["a\ud800"]], [["a"]]),
    ],
)
def test_other_words_another_split_other_features(one: list[list[str]], other: list[list[str]]):
    cache, compute = FeatureCache(), Compute()
    for sentences in (one, other, one, other):
        assert np.array_equal(cache.look_up(sentences, "w", compute), expected(sentences))
    assert compute.asked == one + other


def test_other_weights_other_features(tmp_path: Path):
    cache = FeatureCache(directory=tmp_path)
    for scale in (1.0, 2.0):
        layers = cache.look_up(SENTENCES, f"scale {scale}", Compute(lambda words: layers_of(words, scale)))  # noqa: B023
        assert np.array_equal(layers, expected(SENTENCES) * np.float32(scale))


def test_what_the_caller_does_to_arrays_is_not_remembered():
    cache = FeatureCache()
    computed = expected(SENTENCES)
    for layers in (cache.look_up(SENTENCES, "w", lambda sequences: computed), cache.look_up(SENTENCES, "w", never)):
        layers[:] = 7
    computed[:] = 8
    assert np.array_equal(cache.look_up(SENTENCES, "w", never), expected(SENTENCES))


def test_layers_of_a_real_bilm_come_back_bit_by_bit(source: Path, tmp_path: Path):
    bilm = load_bilm(source)

    def compute(sequences: Sequence[Sequence[str]]) -> np.ndarray:
        with torch.inference_mode():
            return bilm(sequences).layers.numpy()

    first = FeatureCache(directory=tmp_path).look_up(SENTENCES, fingerprint(bilm), compute)
    again = FeatureCache(directory=tmp_path).look_up(SENTENCES, fingerprint(load_bilm(source)), never)
    assert np.array_equal(first, compute(SENTENCES))
    assert np.array_equal(again, first)


# The form


def test_a_vector_that_is_there_twice_is_kept_once():
    layers = layers_of(["a"] * 100)
    record = feature_files.pack(layers)
    assert record.values.nbytes == layers.nbytes * 5 // 6


@pytest.mark.parametrize("width", [8, 7, 1])
def test_layers_of_any_kind_come_back_bit_by_bit(width: int):
    layers = np.random.default_rng(0).standard_normal((5, 2, width), dtype=np.float32)
    layers[0, 1] = np.nan
    # The halves of layer 0 are equal, but not the same bits.
    layers[:, 0] = 0.0
    layers[1, 0, width // 2 :] = -0.0
    found = np.empty_like(layers)
    feature_files.unpack(feature_files.pack(layers), found)
    assert np.array_equal(found.view(np.uint32), layers.view(np.uint32))


def test_half_precision_gives_rounded_values_from_the_first_time_on(tmp_path: Path):
    cache = FeatureCache(directory=tmp_path, half=True)
    rounded = expected(SENTENCES).astype(np.float16).astype(np.float32)
    assert not np.array_equal(rounded, expected(SENTENCES))
    for user, compute in ((cache, Compute()), (cache, never), (FeatureCache(directory=tmp_path, half=True), never)):
        assert np.array_equal(user.look_up(SENTENCES, "w", compute), rounded)


def test_half_precision_takes_half_the_room():
    sizes = []
    for half in (False, True):
        cache = FeatureCache(half=half)
        cache.look_up(numbered(0, 1, words=10_000), "w", Compute())
        sizes.append(cache.n_bytes)
    assert sizes[1] == pytest.approx(sizes[0] / 2, rel=0.01)


def test_values_beyond_half_precision_are_kept_in_full():
    cache = FeatureCache(half=True)
    for compute in (Compute(lambda words: layers_of(words, 1e6)), never):
        assert np.array_equal(cache.look_up([["a", "b"]], "w", compute), layers_of(["a", "b"], 1e6))


def test_full_precision_is_not_served_from_half(tmp_path: Path):
    FeatureCache(directory=tmp_path, half=True).look_up(SENTENCES, "w", Compute())
    layers = FeatureCache(directory=tmp_path).look_up(SENTENCES, "w", Compute())
    assert np.array_equal(layers, expected(SENTENCES))


# The memory


def test_memory_stays_within_its_budget():
    cache = FeatureCache(20_000)
    for number in range(300):
        cache.look_up(numbered(number, number + 3), "w", Compute())
        assert cache.n_bytes <= 20_000
    assert len(cache) > 10


def test_a_sequence_beyond_the_budget_does_not_empty_the_memory():
    cache = FeatureCache(20_000)
    cache.look_up(SENTENCES, "w", Compute())
    for _ in range(20):
        cache.look_up(numbered(0, 1, words=1_000), "w", Compute())
    assert np.array_equal(cache.look_up(SENTENCES, "w", never), expected(SENTENCES))


def test_a_corpus_of_twice_the_budget_is_found_half():
    corpus = numbered(0, 200)
    whole = FeatureCache()
    whole.look_up(corpus, "w", Compute())
    cache = FeatureCache(whole.n_bytes // 2)
    order = np.random.default_rng(0)
    for epoch in range(20):
        compute = Compute()
        for index in order.permutation(len(corpus)):
            cache.look_up([corpus[index]], "w", compute)
        assert len(compute.asked) == (200 if epoch == 0 else 100)


def test_what_has_not_been_used_for_long_makes_room():
    cache = FeatureCache(30_000)
    used, compute = numbered(0, 3), Compute()
    cache.look_up(numbered(0, 100), "w", Compute())
    for number in range(2_000):
        cache.look_up([*used, *numbered(1_000 + number % 20, 1_001 + number % 20)], "w", compute)
    assert len(compute.asked) < 1_000, "the words of today are never remembered"
    assert not [words for words in compute.asked if words in used], "what was used all the time went"


def test_bytes_counted_are_those_taken():
    cache = FeatureCache()
    sentences = numbered(0, 2_000)
    layers = expected(sentences)
    tracemalloc.start()
    cache.look_up(sentences, "w", lambda sequences: layers)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken * 0.9 < cache.n_bytes < taken * 1.5


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_copies_and_pickles_take_the_settings_only(tmp_path: Path, duplicate: Callable[[FeatureCache], FeatureCache]):
    cache = FeatureCache(10**6, tmp_path / "features", max_disk_bytes=10**7, half=True)
    cache.look_up(numbered(0, 100), "w", Compute())
    assert len(pickle.dumps(cache)) < 1_000
    other = duplicate(cache)
    assert len(other) == other.n_bytes == 0
    settings = ("max_bytes", "directory", "max_disk_bytes", "half")
    assert [getattr(other, name) for name in settings] == [getattr(cache, name) for name in settings]
    assert other.look_up(numbered(0, 100), "w", never).shape == (400, LAYERS, WIDTH)


def test_threads_share_a_cache(tmp_path: Path):
    cache = FeatureCache(60_000, tmp_path)
    corpus, failures = numbered(0, 200), []

    def read(seed: int) -> None:
        order = np.random.default_rng(seed)
        for _ in range(60):
            sentences = [corpus[index] for index in order.integers(0, len(corpus), 10)]
            if not np.array_equal(cache.look_up(sentences, "w", Compute()), expected(sentences)):
                failures.append(sentences)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert cache.n_bytes <= 60_000
    assert cache.n_bytes == sum(feature_cache._size(record) for record, _ in cache._memory.entries.values())
    assert FeatureCache(0, tmp_path).look_up(corpus, "w", never).shape == (800, LAYERS, WIDTH)


def test_what_another_thread_computed_meanwhile_is_counted_once(tmp_path: Path):
    cache = FeatureCache(directory=tmp_path)

    def compute_while_another_thread_does(sequences: Sequence[Sequence[str]]) -> np.ndarray:
        cache.look_up(SENTENCES, "w", Compute())
        return expected(sequences)

    cache.look_up(SENTENCES, "w", compute_while_another_thread_does)
    alone = FeatureCache(directory=tmp_path / "alone")
    alone.look_up(SENTENCES, "w", Compute())
    assert cache.n_bytes == alone.n_bytes
    assert next(tmp_path.glob("*.features")).stat().st_size == disk_bytes(tmp_path / "alone")


def test_computing_does_not_block_other_threads():
    cache = FeatureCache()
    cache.look_up([["here"]], "w", Compute())

    def compute(sequences: Sequence[Sequence[str]]) -> np.ndarray:
        thread = threading.Thread(target=cache.look_up, args=([["here"]], "w", never))
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        return expected(sequences)

    cache.look_up([["there"]], "w", compute)


@pytest.mark.parametrize(
    "settings",
    [{"max_bytes": -1}, {"max_bytes": 1.5}, {"max_bytes": True}, {"max_disk_bytes": -1}, {"half": "yes"}],
    ids=str,
)
def test_settings_that_cannot_be_are_named(settings: dict[str, Any]):
    with pytest.raises(ConfigError, match=rf"E300.*'{next(iter(settings))}' of the feature cache"):
        FeatureCache(**settings)


# The disk


def test_another_run_finds_what_was_computed(tmp_path: Path):
    directory = tmp_path / "made" / "if need be"
    FeatureCache(directory=directory).look_up(SENTENCES, "w", Compute())
    cache = FeatureCache(directory=directory)
    assert np.array_equal(cache.look_up(SENTENCES[::-1], "w", never), expected(SENTENCES[::-1]))
    assert len(cache) == 4, "what was read from disk is in memory now"


def test_disk_serves_what_memory_has_no_room_for(tmp_path: Path):
    cache = FeatureCache(0, tmp_path)
    cache.look_up(SENTENCES, "w", Compute())
    size = disk_bytes(tmp_path)
    assert np.array_equal(cache.look_up(SENTENCES, "w", never), expected(SENTENCES))
    assert len(cache) == cache.n_bytes == 0
    assert disk_bytes(tmp_path) == size


def test_what_another_process_writes_meanwhile_is_found(tmp_path: Path):
    cache, other = FeatureCache(directory=tmp_path), FeatureCache(directory=tmp_path)
    for first in range(0, 12, 4):
        cache.look_up(numbered(first, first + 2), "w", Compute())
        other.look_up(numbered(first, first + 2), "w", never)
        other.look_up(numbered(first + 2, first + 4), "w", Compute())
        cache.look_up(numbered(first + 2, first + 4), "w", never)


def test_a_changed_byte_is_seen_and_made_good(tmp_path: Path):
    FeatureCache(directory=tmp_path).look_up(SENTENCES[:2], "w", Compute())
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    for position in range(0, len(good), 7):
        data = bytearray(good)
        data[position] ^= 1 << position % 8
        file.write_bytes(data)
        compute = Compute()
        assert np.array_equal(
            FeatureCache(directory=tmp_path).look_up(SENTENCES[:2], "w", compute), expected(SENTENCES[:2])
        )
        assert compute.asked, f"the byte at {position} was taken as it is"
        # The good record is in a later file, and is the one that counts.
        FeatureCache(directory=tmp_path).look_up(SENTENCES[:2], "w", never)
        for later in set(tmp_path.iterdir()) - {file}:
            later.unlink()


def test_bytes_changed_in_a_running_process_are_seen(tmp_path: Path):
    cache = FeatureCache(0, tmp_path)
    cache.look_up(SENTENCES, "w", Compute())
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    compute = Compute()
    assert np.array_equal(cache.look_up(SENTENCES, "w", compute), expected(SENTENCES))
    assert compute.asked == SENTENCES[-1:]
    assert np.array_equal(cache.look_up(SENTENCES, "w", never), expected(SENTENCES))


def test_a_record_of_other_words_in_its_place_is_seen(tmp_path: Path):
    cache = FeatureCache(0, tmp_path / "here")
    cache.look_up([["a"]], "w", Compute())
    FeatureCache(0, tmp_path / "there").look_up([["b"]], "w", Compute())
    (here,), (there,) = (list((tmp_path / name).iterdir()) for name in ("here", "there"))
    here.write_bytes(there.read_bytes())
    assert np.array_equal(cache.look_up([["a"]], "w", Compute()), expected([["a"]]))


def test_a_file_that_ends_anywhere_gives_what_is_whole(tmp_path: Path):
    FeatureCache(directory=tmp_path).look_up(SENTENCES, "w", Compute())
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    numbers_found = set()
    for length in range(0, len(good), 5):
        file.write_bytes(good[:length])
        compute = Compute()
        # Bounded, so that nothing new is written.
        cache = FeatureCache(0, tmp_path, max_disk_bytes=0)
        os.utime(file, (time.time() + 60,) * 2)
        assert np.array_equal(cache.look_up(SENTENCES, "w", compute), expected(SENTENCES))
        assert compute.asked == SENTENCES[len(SENTENCES) - len(compute.asked) :]
        numbers_found.add(len(SENTENCES) - len(compute.asked))
    assert numbers_found == {0, 1, 2, 3}


def test_a_record_that_is_taken_back_while_it_is_written_hides_nothing(tmp_path: Path):
    parts = []
    for words in (["a"], ["b"] * 3, ["c"] * 5):
        writer = FeatureCache(0, tmp_path / words[0])
        writer.look_up([words], "w", Compute())
        parts.append(next((tmp_path / words[0]).iterdir()).read_bytes())
    cache = FeatureCache(0, tmp_path, max_disk_bytes=0)
    file = tmp_path / f"1{feature_files.SUFFIX}"
    for content in (parts[0] + parts[1][:-1], parts[0] + parts[2]):
        file.write_bytes(content)
        os.utime(file, (time.time() + 60,) * 2)
        cache.look_up([["a"]], "w", never)
        cache.look_up([["d"]], "w", Compute())
    cache.look_up([["c"] * 5], "w", never)


def test_files_of_others_are_left_alone(tmp_path: Path):
    (tmp_path / f"garbage{feature_files.SUFFIX}").write_bytes(os.urandom(5_000))
    (tmp_path / f"empty{feature_files.SUFFIX}").touch()
    (tmp_path / f"directory{feature_files.SUFFIX}").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    FeatureCache(directory=tmp_path).look_up(SENTENCES, "w", Compute())
    FeatureCache(directory=tmp_path).look_up(SENTENCES, "w", never)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_files_deleted_meanwhile_are_written_anew(tmp_path: Path):
    cache = FeatureCache(0, tmp_path)
    cache.look_up(SENTENCES, "w", Compute())
    for file in tmp_path.iterdir():
        file.unlink()
    assert np.array_equal(cache.look_up(SENTENCES, "w", Compute()), expected(SENTENCES))
    assert np.array_equal(cache.look_up(SENTENCES, "w", never), expected(SENTENCES))
    FeatureCache(directory=tmp_path).look_up(SENTENCES, "w", never)


def test_a_directory_that_cannot_be_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(PipelineError, match="E340.*file"):
            FeatureCache(directory=directory).look_up(SENTENCES, "w", Compute())


# The bound of the disk


def disk_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir())


def test_disk_stays_within_its_bound_and_keeps_what_came_first(tmp_path: Path):
    cache = FeatureCache(0, tmp_path, max_disk_bytes=20_000)
    for first in range(0, 200, 10):
        cache.look_up(numbered(first, first + 10), "w", Compute())
        assert disk_bytes(tmp_path) <= 20_000
    assert disk_bytes(tmp_path) > 10_000
    compute = Compute()
    FeatureCache(0, tmp_path).look_up(numbered(0, 10), "w", never)
    cache.look_up(numbered(0, 200), "w", compute)
    assert 120 < len(compute.asked) < 180


def test_files_that_no_run_uses_make_room(tmp_path: Path):
    FeatureCache(0, tmp_path).look_up(numbered(0, 20), "old", Compute())
    (old,) = tmp_path.iterdir()
    FeatureCache(0, tmp_path).look_up(numbered(0, 20), "used", Compute())
    (used,) = set(tmp_path.iterdir()) - {old}
    os.utime(old, (1e9, 1e9))
    os.utime(used, (1e8, 1e8))
    cache = FeatureCache(0, tmp_path, max_disk_bytes=disk_bytes(tmp_path))
    cache.look_up(numbered(0, 20), "used", never)
    cache.look_up(numbered(0, 20), "new", Compute())
    assert not old.exists()
    assert used.exists()
    cache.look_up(numbered(0, 20), "new", never)


def test_a_large_file_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feature_files, "MAX_FILE_BYTES", 2_000)
    cache = FeatureCache(0, tmp_path)
    for first in range(0, 40, 4):
        cache.look_up(numbered(first, first + 4), "w", Compute())
    assert len(list(tmp_path.iterdir())) == 5
    cache.look_up(numbered(0, 40), "w", never)


# Processes

PRELUDE = f"""
import os, signal, sys, threading, warnings, zlib
from collections.abc import Sequence
from pathlib import Path
import numpy as np
from spacy_elmo.pipeline.feature_cache import FeatureCache

LAYERS, WIDTH = {LAYERS}, {WIDTH}
directory = Path(sys.argv[1])

{inspect.getsource(layers_of)}
{inspect.getsource(numbered)}
def compute(sequences):
    return np.concatenate([layers_of(words) for words in sequences])
"""


def start_python(script: str, directory: Path) -> subprocess.Popen[str]:
    code = PRELUDE + textwrap.dedent(script)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(directory)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def output_of(process: subprocess.Popen[str]) -> list[str]:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output.split()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill -9")
def test_a_process_killed_while_it_writes_leaves_nothing_broken(tmp_path: Path):
    process = start_python(
        """
        cache = FeatureCache(0, directory)
        for first in range(0, 10_000, 100):
            cache.look_up(numbered(first, first + 100, 2_000), "w", compute)
        """,
        tmp_path,
    )
    while process.poll() is None and disk_bytes(tmp_path) < 40_000_000:
        time.sleep(0.001)
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
    process.communicate()
    sentences, compute = numbered(0, 400, 2_000), Compute()
    assert np.array_equal(FeatureCache(0, tmp_path).look_up(sentences, "w", compute), expected(sentences))
    assert len(compute.asked) < 200
    FeatureCache(0, tmp_path).look_up(sentences, "w", never)


def test_two_processes_write_at_once(tmp_path: Path):
    script = """
        cache = FeatureCache(0, directory)
        (directory / f"ready-{os.getpid()}").touch()
        while len(list(directory.glob("ready-*"))) < 2:
            pass
        for first in range(0, 300, 10):
            sentences = numbered(first, first + 20)
            assert np.array_equal(cache.look_up(sentences, "w", compute), compute(sentences))
    """
    for process in [start_python(script, tmp_path) for _ in range(2)]:
        output_of(process)
    assert len(list(tmp_path.glob(f"*{feature_files.SUFFIX}"))) == 2
    sentences = numbered(0, 310)
    layers = FeatureCache(0, tmp_path).look_up(sentences, "w", never)
    assert np.array_equal(layers, expected(sentences))


def test_a_full_disk_ends_no_run(tmp_path: Path):
    pytest.importorskip("resource")
    process = start_python(
        """
        import resource
        # A file that reaches this takes a part of what is written, and then gives an error, as a full disk does.
        resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, 250_000))
        cache = FeatureCache(0, directory)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for first in range(0, 60, 6):
                sentences = numbered(first, first + 6, 200)
                assert np.array_equal(cache.look_up(sentences, "w", compute), compute(sentences))
        print(len(caught), "ELMO-W340" in str(caught[0].message), caught[0].filename)
        """,
        tmp_path,
    )
    assert output_of(process) == ["1", "True", "<string>"]
    batch = 6 * len(feature_files._to_bytes(bytes(32), feature_files.pack(layers_of(["0"] * 200))))
    assert disk_bytes(tmp_path) == 250_000 // batch * batch, "what is there is not all that was whole"
    FeatureCache(0, tmp_path).look_up(numbered(0, 12, 200), "w", never)


def test_an_interrupted_write_hides_nothing_that_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cache = FeatureCache(0, tmp_path)
    cache.look_up(numbered(0, 2), "w", Compute())

    class Interrupting:
        """Half of what is written, and then the user stops it."""

        def __init__(self, data: bytes) -> None:
            self.data = data

        def __getitem__(self, key: slice) -> bytes:
            if key.start:
                raise KeyboardInterrupt
            return self.data[: len(self.data) // 2]

    with monkeypatch.context() as patch:
        patch.setattr(feature_files, "memoryview", Interrupting, raising=False)
        with pytest.raises(KeyboardInterrupt):
            cache.look_up(numbered(2, 4), "w", Compute())
    cache.look_up(numbered(2, 6), "w", Compute())
    FeatureCache(0, tmp_path).look_up(numbered(0, 6), "w", never)


@needs_fork
def test_parent_and_child_of_a_fork_go_on_with_the_same_cache(tmp_path: Path):
    process = start_python(
        """
        from spacy_elmo.pipeline import feature_cache
        cache = FeatureCache(10**6, directory)
        cache.look_up(numbered(0, 2), "w", compute)
        held, forked = threading.Event(), threading.Event()

        def look_something_up():
            with feature_cache._LOCK.held():
                held.set()
                forked.wait()

        threading.Thread(target=look_something_up).start()
        held.wait()
        child = os.fork()
        forked.set()
        if not child:
            signal.alarm(60)
        first = 2 if child else 4
        for number in range(first, first + 2):
            cache.look_up(numbered(number, number + 1), "w", compute)
        if not child:
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        print(len(list(directory.iterdir())))
        """,
        tmp_path,
    )
    assert output_of(process) == ["2"]
    FeatureCache(0, tmp_path).look_up(numbered(0, 6), "w", never)


def test_warnings_are_not_given_where_all_is_well(tmp_path: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for half in (False, True):
            for _ in range(2):
                cache = FeatureCache(0, tmp_path, half=half)
                cache.look_up(SENTENCES, "w", Compute())
                cache.look_up(SENTENCES, "w", never)
