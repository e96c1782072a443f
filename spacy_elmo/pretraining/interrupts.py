"""Ctrl-C between steps of a training run, never in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM, as shells have it."""

_DEFERRED = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Signals that stop a run wait for the end of the block: weights, step and position change together or not at all.

    Only signals that Python code handles are deferred, and only in the main thread, which alone receives them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    handlers = {number: signal.getsignal(number) for number in _DEFERRED}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}

    def remember(number: int, frame: FrameType | None) -> None:
        received.append((number, frame))

    try:
        for number in handlers:
            signal.signal(number, remember)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for caught, frame in received[:1]:
            handler = handlers[signal.Signals(caught)]
            if callable(handler):
                handler(caught, frame)


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """A polite request to end (SIGTERM, as a batch system sends it) is as good as Ctrl-C within the block."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class StopRequest:
    """Whether a run was asked to stop: several processes stop at the same step only if none stops by itself.

    requested (bool): Whether it was.
    """

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def heeded(self, active: bool) -> Iterator[None]:
        """Within the block, if active, signals that stop a run leave no more than the request."""
        if not active or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._remember) for number in _DEFERRED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
