"""Torch in forked processes, as `nlp.pipe(n_process=2)` and many servers make them."""

from __future__ import annotations

import os
import sys


def use_one_thread() -> None:
    """Let torch run in one thread of its own in this process. Where torch has not been imported there is nothing to
    do."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    # A fork takes along the parent's pool of threads in name only: the child would wait for them forever.
    os.register_at_fork(after_in_child=use_one_thread)
