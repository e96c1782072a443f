"""The processes of a training run: one, or as many as `torchrun` started.

Each process holds the whole model and reads its own parts of the text; gradients are added up. Every decision that
depends on more than the step is made by one process and handed to the others, so that all do the same.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ElmoWarning, Errors, TrainingError, Warnings, detail_of

_MEETING, _TIMEOUT, _PATIENCE = timedelta(minutes=30), timedelta(hours=2), timedelta(days=20)
"""How long a process waits for the others at the start; later; and, before the first step, while the first one splits raw text
or counts words, which may take days. A process that ends is noticed at once, a machine that goes dark only then."""


class Workers:
    """The processes that train together.

    rank (int): Number of this process, from 0; process 0 alone writes files.
    world (int): How many there are.
    group (ProcessGroup | None): Through which they speak; none for one process.
    patient (ProcessGroup | None): The same, for what takes the first one its time.
    begun (bool): Whether they met for this run alone.
    """

    def __init__(
        self, rank: int = 0, world: int = 1, group: Any = None, patient: Any = None, begun: bool = False
    ) -> None:
        self.rank, self.world, self._group, self._patient, self._begun = rank, world, group, patient, begun
        self._alone = False

    @classmethod
    def join(cls) -> Workers:
        """Meet the other processes, if `torchrun` started some, or if they have met already, as in a worker of Ray.

        RETURNS (Workers): Of this process.
        RAISES (TrainingError): E270 if they cannot meet.
        """
        met = dist.is_available() and dist.is_initialized()
        world = str(dist.get_world_size()) if met else os.environ.get("WORLD_SIZE", "1")
        if world == "1":
            return cls()
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        try:
            if not met:
                dist.init_process_group(backend, timeout=_MEETING)
            # Groups of their own. One that all have met in before may know GPUs alone, and waits as long as others see
            # fit; and modules of torch that are imported later keep the first group, whose threads can then die with
            # the last tensors in their hands and take the process with them (torch's issue 190489).
            group = dist.new_group(backend=backend, timeout=_TIMEOUT)
            patient = dist.new_group(backend="gloo", timeout=_PATIENCE)
        except (
            AttributeError,
            ValueError,
            RuntimeError,
        ) as error:  # the first where torch was built without any of this
            raise TrainingError(Errors.E270.format(world=world, detail=detail_of(error))) from error
        workers = cls(dist.get_rank(), dist.get_world_size(), group, patient, begun=not met)
        if workers.is_first:
            _warn_of_restarts()
        return workers

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def local_gpu(self, gpu_id: int) -> int:
        """RETURNS (int): The GPU of this process: that of its place on its machine; -1 for the CPU."""
        if gpu_id < 0 or self.world == 1:
            return gpu_id
        # A scheduler may show each process no GPU but its own.
        return 0 if torch.cuda.device_count() == 1 else int(os.environ.get("LOCAL_RANK", self.rank))

    def parts(self, parts: int) -> list[int]:
        """RETURNS (list[int]): The parts of the text that this process reads."""
        return list(range(self.rank, parts, self.world))

    def sum(self, *counts: int) -> list[int]:
        """RETURNS (list[int]): Each count, added up over all processes."""
        if self.world == 1:
            return list(counts)
        together = torch.tensor(counts)
        self.add_up(together)
        return together.tolist()

    def add_up(self, values: Tensor) -> None:
        """Add up values over all processes, in place; each gets the sum.

        RAISES (TrainingError): E275 if another process is gone; so do all methods that need the others.
        """
        if self.world > 1:
            with self._together():
                dist.all_reduce(values, group=self._group)

    def agree(self, number: int) -> bool:
        """RETURNS (bool): Whether all processes passed the same number, of at most 63 bits."""
        if self.world == 1:
            return True
        ends = torch.tensor([number, -number])
        with self._together():
            dist.all_reduce(ends, dist.ReduceOp.MAX, group=self._group)
        return bool(ends[0] == -ends[1])

    def of_first(self, value: Any, patiently: bool = False) -> Any:
        """Hear what process 0 has.

        value (Any): Of JSON's types.
        patiently (bool): Whether it may take that process days to come here.
        RETURNS (Any): What process 0 passed, in every process.
        """
        if self.world == 1:
            return value
        group = self._patient if patiently else self._group
        content = json.dumps(value).encode() if self.is_first else b""
        size = torch.tensor([len(content)])
        with self._together():
            dist.broadcast(size, 0, group=group)
            data = torch.zeros(int(size), dtype=torch.uint8)
            if self.is_first:
                data.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
            dist.broadcast(data, 0, group=group)
        return json.loads(data.numpy().tobytes())

    def collect(self, mine: dict[int, Tensor], parts: int, like: Tensor) -> dict[int, Tensor]:
        """Bring what each process holds of its parts to all of them.

        mine (dict[int, Tensor]): A tensor for each of `self.parts(parts)`, all of one shape.
        parts (int): How many there are in all.
        like (Tensor): A tensor of their shape, type and device.
        RETURNS (dict[int, Tensor]): The tensor of each part.
        """
        if self.world == 1:
            return mine
        everything = torch.stack([mine.get(part, torch.zeros_like(like)) for part in range(parts)])
        self.add_up(everything)
        return dict(enumerate(everything))

    def leave(self) -> None:
        """Part from the other processes. Where one is gone already, there is nobody to wait for."""
        if self._group is not None and not self._alone and dist.is_initialized():
            dist.destroy_process_group(self._patient)
            dist.destroy_process_group(self._group)
            self._group = self._patient = None  # their threads end with the last one who holds them
            if self._begun:
                dist.destroy_process_group()

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self._alone = True
            raise TrainingError(
                Errors.E275.format(rank=self.rank, world=self.world, detail=detail_of(error))
            ) from error


def _warn_of_restarts() -> None:
    """A defect of torch (its issue 135712): what is started anew may read where the processes before it listened."""
    restarts, shared = (os.environ.get(f"TORCHELASTIC_{name}") for name in ("MAX_RESTARTS", "USE_AGENT_STORE"))
    if restarts not in (None, "0") and shared == "True":
        warnings.warn(Warnings.W224.format(restarts=restarts), ElmoWarning, stacklevel=3)
