"""Locks that outlive a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ForkSafeLock:
    """A lock that is free in a forked child. A thread that holds a plain one while the process forks would leave it
    taken in the child forever.

    It lasts as long as the process: make one for a module, not one for each object, which then need not carry it
    through copies and pickles.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock for the length of a `with` block."""
        # The lock of the beginning is released at the end, even if there is another one by then.
        with self._lock:
            yield

    def _renew(self) -> None:
        self._lock = threading.Lock()
