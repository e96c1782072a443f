"""Locks that outlive a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from spacy_elmo.lm.locks import ForkSafeLock

ROOT = Path(__file__).resolve().parents[2]


def test_one_thread_at_a_time():
    lock, entered = ForkSafeLock(), threading.Event()

    def enter() -> None:
        with lock.held():
            entered.set()

    thread = threading.Thread(target=enter)
    with lock.held():
        thread.start()
        assert not entered.wait(0.05)
    assert entered.wait(10)
    thread.join()


def test_lock_is_free_again_after_an_error():
    lock = ForkSafeLock()
    for _ in range(2):
        with pytest.raises(KeyError), lock.held():
            raise KeyError


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_child_of_a_fork_has_a_free_lock():
    script = """
        import os, signal
        from spacy_elmo.lm.locks import ForkSafeLock

        lock = ForkSafeLock()
        with lock.held():
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                with lock.held():
                    pass
        if child == 0:
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert run.stdout == "0\n", run.stderr
