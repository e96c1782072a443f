from __future__ import annotations

import threading
import time

import pytest

from spacy_elmo.pretraining import prefetching
from spacy_elmo.pretraining.prefetching import prefetched


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "reader of text"]


def test_items_come_in_their_order_from_another_thread():
    names = []

    def numbers():
        for number in range(100):
            names.append(threading.current_thread().name)
            yield number

    with prefetched(numbers()) as items:
        assert list(items) == list(range(100))
    assert set(names) == {"reader of text"}
    assert readers() == []


def test_only_a_few_are_taken_ahead():
    taken = []

    def numbers():
        for number in range(100):
            taken.append(number)
            yield number

    with prefetched(numbers()) as items:
        assert next(items) == 0
        time.sleep(0.1)
        assert len(taken) <= 5


def test_an_error_comes_after_the_items_before_it_and_leaves_no_thread():
    def numbers():
        yield 1
        yield 2
        raise ValueError("of the reader")

    found = []
    with pytest.raises(ValueError, match="of the reader"), prefetched(numbers()) as items:
        for number in items:
            found.append(number)
    assert found == [1, 2]
    assert readers() == []


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_who_leaves_early_leaves_no_thread(error):
    closed = threading.Event()

    def numbers():
        try:
            yield from range(10**9)
        finally:
            closed.set()

    try:
        with prefetched(numbers()) as items:
            next(items)
            if error is not None:
                raise error
    except KeyboardInterrupt:
        pass
    assert readers() == []
    assert closed.wait(5)


def test_a_reader_that_hangs_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(prefetching, "_PATIENCE", 0.05)
    answered = threading.Event()

    def numbers():
        yield 1
        answered.wait(30)
        yield 2

    begun = time.monotonic()
    with prefetched(numbers()) as items:
        assert next(items) == 1
    assert time.monotonic() - begun < 5
    answered.set()
    for thread in readers():
        thread.join(5)
    assert readers() == []
