"""A training run on disk: all that is needed to go on exactly where it was, in one safetensors file without pickle."""

from __future__ import annotations

import json
import re
import warnings
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ElmoWarning, Errors, TrainingError, Warnings, detail_of
from ..weights.files import remove_unfinished, write_atomically
from ..weights.safetensors_stream import pieces, read_header
from .distributed import Workers

BEST = "best.safetensors"
BEGIN = "begin.safetensors"
_NAME = re.compile(r"step-(\d+)\.safetensors")
# What broken files can make json and torch raise.
_BROKEN = (OSError, ValueError, KeyError, TypeError, ArithmeticError, RuntimeError)
_NEEDED = {"config", "settings", "chosen", "step", "words", "words_an_epoch", "position"}


@dataclass
class Checkpoint:
    """tensors: weights, head, optimizer and generator under prefixed names. progress: the rest, in JSON's types."""

    tensors: dict[str, Tensor]
    progress: dict[str, Any]

    @classmethod
    def of_parts(cls, parts: Mapping[str, Mapping[str, Tensor]], progress: dict[str, Any]) -> Checkpoint:
        """RETURNS (Checkpoint): Of the tensors of several parts."""
        return cls(
            {f"{part}.{name}": tensor for part, named in parts.items() for name, tensor in named.items()}, progress
        )

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """RETURNS (dict[str, dict[str, Tensor]]): The tensors of each part, without its prefix."""
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in self.tensors.items():
            part, rest = name.split(".", 1)
            parts.setdefault(part, {})[rest] = tensor
        return parts


def save_checkpoint(directory: Path, step: int, checkpoint: Checkpoint, keep: int, good: Iterable[int]) -> Path:
    """Write a checkpoint and delete all but the newest, and those of later steps, which were passed over as broken.

    directory (Path): Where checkpoints are.
    step (int): Steps done.
    checkpoint (Checkpoint): What to write.
    keep (int): Checkpoints to keep.
    good (Iterable[int]): Steps that the run may be taken back to: the newest up to each of them is kept, too.
    RETURNS (Path): The file.
    RAISES (TrainingError): E210 if it cannot be written; earlier ones are untouched.
    """
    path = _path(directory, step)
    _write(path, checkpoint)
    up_to_here = [old for old in find_checkpoints(directory) if _step(old) <= step]
    kept = set(up_to_here[:keep])
    for last in good:
        kept.update([old for old in up_to_here if _step(old) <= last][:1])
    for old in find_checkpoints(directory):
        if old not in kept:
            with suppress(OSError):
                old.unlink()
    return path


def save_best(directory: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint with the best weights so far, in place of the one before.

    RAISES (TrainingError): E210 if it cannot be written; the one before is untouched.
    """
    _write(directory / BEST, checkpoint)


def save_begin(directory: Path, checkpoint: Checkpoint) -> None:
    """Write the weights that a run begins with, to which a leap of its first steps may take it back; it never goes on from them.

    RAISES (TrainingError): E210 if it cannot be written.
    """
    _write(directory / BEGIN, checkpoint)


def drop_begin(directory: Path) -> None:
    """Delete what `save_begin` wrote, once there is a checkpoint to go back to."""
    with suppress(OSError):
        (directory / BEGIN).unlink()


def find_checkpoints(directory: Path) -> list[Path]:
    """RETURNS (list[Path]): The checkpoints of a run, newest first."""
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if _NAME.fullmatch(path.name)), key=_step, reverse=True)


def load_newest_checkpoint(directory: Path, up_to: int | None = None) -> Checkpoint | None:
    """Read the newest checkpoint that is whole; a broken one is reported and passed over.

    directory (Path): Where checkpoints are.
    up_to (int | None): The last step that will do.
    RETURNS (Checkpoint | None): The checkpoint, None if there is none.
    RAISES (TrainingError): E211 if there are checkpoints but all are broken.
    """
    paths = [path for path in find_checkpoints(directory) if up_to is None or _step(path) <= up_to]
    for path in paths:
        checkpoint = read_checkpoint(path)
        if checkpoint is not None:
            return checkpoint
    if paths:
        raise TrainingError(Errors.E211.format(directory=directory, names=[path.name for path in paths]))
    return None


def newest_progress(directory: Path) -> dict[str, Any] | None:
    """Read what the newest checkpoint of which the begin is whole says of its run, without its tensors.

    directory (Path): Where checkpoints are.
    RETURNS (dict | None): The progress, None if there is no such checkpoint.
    """
    for path in find_checkpoints(directory):
        with suppress(*_BROKEN), open(path, "rb", buffering=0) as file:
            return _progress_of(read_header(file)[1])
    return None


def load_same_checkpoint(directory: Path, workers: Workers, up_to: int | None = None) -> Checkpoint | None:
    """As `load_newest_checkpoint`; which one that is, process 0 decides for all.

    RAISES (TrainingError): E277 if another process cannot read it.
    """
    checkpoint = load_newest_checkpoint(directory, up_to) if workers.is_first else None
    step = workers.of_first(None if checkpoint is None else checkpoint.progress["step"])
    if workers.is_first or step is None:
        return checkpoint
    return _read_as_first(_path(directory, step), workers)


def load_begin(directory: Path, workers: Workers) -> Checkpoint | None:
    """RETURNS (Checkpoint | None): What `save_begin` wrote; None if process 0 cannot read it.

    RAISES (TrainingError): E277 if another process cannot read it.
    """
    path = directory / BEGIN
    begin = read_checkpoint(path) if workers.is_first else None
    if workers.of_first(begin is None) or workers.is_first:
        return begin
    return _read_as_first(path, workers)


def _read_as_first(path: Path, workers: Workers) -> Checkpoint:
    checkpoint = read_checkpoint(path)
    if checkpoint is None:
        raise TrainingError(Errors.E277.format(rank=workers.rank, path=path))
    return checkpoint


def read_checkpoint(path: Path) -> Checkpoint | None:
    """RETURNS (Checkpoint | None): What is in a file; None, and a warning, if it is broken or gone."""
    try:
        return _read(path)
    except _BROKEN as error:
        warnings.warn(Warnings.W200.format(path=path, detail=detail_of(error)), ElmoWarning, stacklevel=2)
        return None


def _write(path: Path, checkpoint: Checkpoint) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    progress = {**checkpoint.progress, "checksum": _checksum(tensors, checkpoint.progress)}
    try:
        remove_unfinished(path.with_name("*.safetensors"))
        write_atomically(path, pieces(tensors, {"progress": json.dumps(progress)}))
    except OSError as error:
        raise TrainingError(Errors.E210.format(path=path, detail=detail_of(error))) from error


def _read(path: Path) -> Checkpoint:
    with open(path, "rb", buffering=0) as file:
        stored, metadata = read_header(file)
        progress = _progress_of(metadata)
        tensors = {name: tensor.read() for name, tensor in stored.items()}
    if progress.pop("checksum", None) != _checksum(tensors, progress):
        raise ValueError("its checksum is wrong")
    return Checkpoint(tensors, progress)


def _progress_of(metadata: dict[str, str]) -> dict[str, Any]:
    progress = json.loads(metadata.get("progress", "null"))
    if not isinstance(progress, dict) or not progress.keys() >= _NEEDED:
        raise ValueError(f"its progress lacks one of {sorted(_NEEDED)}")
    return progress


def _checksum(tensors: dict[str, Tensor], progress: dict[str, Any]) -> int:
    """safetensors keeps none, and a flipped bit in a weight would not be seen."""
    value = zlib.crc32(json.dumps(progress, sort_keys=True).encode())
    for name in sorted(tensors):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, value)
    return value


def _path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:08}.safetensors"


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1
