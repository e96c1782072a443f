"""The training command in processes of its own, forked from a server that has imported torch once."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from spacy_elmo.pretraining.__main__ import main

SECONDS = 120
"""More than any of these runs takes on a busy machine: what takes longer hangs."""

_context = multiprocessing.get_context("forkserver")
# torch imports the last one with the first optimizer, which takes longer than a whole run.
_context.set_forkserver_preload(["__main__", __name__, "torch._dynamo"])


class Trap(NamedTuple):
    """A signal that a process sends to itself when it calls a function, "module:name.name", for the so-manieth time."""

    place: str
    call: int
    number: int


class Child:
    """A process that trains.

    arguments (Sequence): Those of the command.
    log (Path): Where what it prints goes.
    environment (Mapping): What it has besides its parent's.
    traps (Sequence[Trap]): When it stops itself.
    largest_file (int | None): Bytes that a file may have; a larger one meets a full disk.
    met (bool): Whether the processes have met already when the command begins, as workers of Ray have.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        log: Path,
        environment: Mapping[str, str] | None = None,
        traps: Sequence[Trap] = (),
        largest_file: int | None = None,
        met: bool = False,
    ) -> None:
        self.log = log
        given = [str(argument) for argument in arguments]
        self.process = _context.Process(
            target=_train, args=(given, str(log), dict(environment or {}), list(traps), largest_file, met)
        )
        self.process.start()

    def wait(self) -> int:
        """RETURNS (int): Its exit code. A process that hangs is killed: -9."""
        return _exit_code(self.process)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")


def start_pair(arguments: Sequence[object], logs: Path, **of_each: Sequence[Any]) -> list[Child]:
    """Two processes of one run, as torchrun starts them. of_each (Sequence): An option of `Child`, for each of them."""
    logs.mkdir(exist_ok=True)
    port = free_port()
    children = []
    for rank in range(2):
        options = {name: values[rank] for name, values in of_each.items()}
        children.append(Child(arguments, logs / f"{rank}.log", ranks(rank, port), **options))
    return children


def in_pair(function: Callable[[], None]) -> list[int]:
    """Call a function of a module in two processes that are to meet.

    RETURNS (list): Their exit codes.
    """
    port = free_port()
    pair = [_context.Process(target=_call, args=(function, ranks(rank, port))) for rank in range(2)]
    for process in pair:
        process.start()
    return [_exit_code(process) for process in pair]


def _exit_code(process: Any) -> int:
    """That of a process, which is killed if it hangs: -9."""
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode is not None
    return int(process.exitcode)


def ranks(rank: int, port: int) -> dict[str, str]:
    """The environment of a process of two."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": loopback()}
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", **place}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def loopback() -> str:
    """The name of the interface, without which the name of the machine would be looked up."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


def _call(function: Callable[[], None], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    function()


def _train(
    arguments: list[str], log: str, environment: dict[str, str], traps: list[Trap], largest_file: int | None, met: bool
) -> None:
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for trap in traps:
        _set(trap)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    if met:
        dist.init_process_group("gloo")
    code = main(arguments)
    if met:
        dist.barrier()  # the group is still there
        dist.destroy_process_group()
    sys.exit(code)


def _set(trap: Trap) -> None:
    module, _, names = trap.place.partition(":")
    *owners, name = names.split(".")
    owner = importlib.import_module(module)
    for of_owner in owners:
        owner = getattr(owner, of_owner)
    setattr(owner, name, _counted(getattr(owner, name), trap))


def _counted(function: Callable[..., Any], trap: Trap) -> Callable[..., Any]:
    calls = []

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == trap.call:
            os.kill(os.getpid(), trap.number)
        return function(*arguments, **named)

    return call


def each_once(
    make_directory: Callable[[], Path], command: Callable[[Path, str], list[object]]
) -> Callable[[str], Path]:
    """Runs by the name of their settings, each of which is done once, to its end, when it is first asked for.

    make_directory (Callable): Makes a new directory.
    command (Callable): From the directory of a run, and its name, to the arguments of the command.
    RETURNS (Callable): From a name to the directory of the run.
    """
    done: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in done:
            done[name] = make_directory() / "run"
            child = Child(command(done[name], name), done[name].parent / "log")
            assert child.wait() == 0, child.said
        return done[name]

    return run
