"""Text made ready by a second thread while the first one computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Queue = queue.Queue[tuple[bool, Any]]
"""Whether this is an item, and the item; or the error that ended them, None if there was none."""

_AHEAD = 2
_SECONDS = 0.1
_PATIENCE = 5.0


@contextmanager
def prefetched(items: Iterable[_Item]) -> Iterator[Iterator[_Item]]:
    """Take items in a thread of their own, a few ahead. The thread ends with the block, or, if an item takes longer than
    some seconds then, after that item: a file system that hangs does not keep a run from saving.

    items (Iterable): Used by the thread alone.
    YIELDS (Iterator): The items in their order; an error that they raise is raised here.
    """
    ready: _Queue = queue.Queue(_AHEAD)
    over = threading.Event()

    def fill() -> None:
        last: tuple[bool, BaseException | None] = (False, None)
        try:
            for item in items:
                if not _put(ready, (True, item), over):
                    return
        except BaseException as error:  # whatever it is, it belongs to the thread that reads
            last = (False, error)
        _put(ready, last, over)

    thread = threading.Thread(target=fill, name="reader of text", daemon=True)
    thread.start()
    try:
        yield _taken(ready)
    finally:
        over.set()
        thread.join(_PATIENCE)


def _put(ready: _Queue, entry: tuple[bool, Any], over: threading.Event) -> bool:
    while not over.is_set():
        try:
            ready.put(entry, timeout=_SECONDS)
        except queue.Full:
            continue
        return True
    return False


def _taken(ready: _Queue) -> Iterator[Any]:
    while True:
        is_item, item = ready.get()
        if not is_item:
            if item is not None:
                raise item
            return
        yield item
