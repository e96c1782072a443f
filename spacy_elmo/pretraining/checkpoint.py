"""A training run on disk: all that is needed to go on exactly where it was, in one safetensors file without pickle."""

from __future__ import annotations

import json
import re
import warnings
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ElmoWarning, Errors, TrainingError, Warnings
from ..weights.files import remove_unfinished, write_atomically
from ..weights.safetensors_stream import pieces, read_header

_NAME = re.compile(r"step-(\d+)\.safetensors")
_NEEDED = {"config", "settings", "step", "words", "words_an_epoch", "position"}


@dataclass
class Checkpoint:
    """tensors: weights, head, optimizer and generator under prefixed names. progress: the rest, in JSON's types."""

    tensors: dict[str, Tensor]
    progress: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """RETURNS (dict[str, Tensor]): The tensors of one part, without its prefix."""
        return {name[len(prefix) + 1 :]: t for name, t in self.tensors.items() if name.startswith(f"{prefix}.")}


def save_checkpoint(directory: Path, step: int, checkpoint: Checkpoint, keep: int = 2) -> Path:
    """Write a checkpoint and delete all but the newest, and those of later steps, which were passed over as broken.

    directory (Path): Where checkpoints are.
    step (int): Steps done.
    checkpoint (Checkpoint): What to write.
    keep (int): Checkpoints to keep.
    RETURNS (Path): The file.
    RAISES (TrainingError): E210 if it cannot be written; earlier ones are untouched.
    """
    path = directory / f"step-{step:08}.safetensors"
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    progress = {**checkpoint.progress, "checksum": _checksum(tensors, checkpoint.progress)}
    try:
        remove_unfinished(directory / "step-*.safetensors")
        write_atomically(path, pieces(tensors, {"progress": json.dumps(progress)}))
    except OSError as error:
        raise TrainingError(Errors.E210.format(path=path, detail=error)) from error
    up_to_here = [old for old in find_checkpoints(directory) if _step(old) <= step]
    for old in find_checkpoints(directory):
        if old not in up_to_here[:keep]:
            with suppress(OSError):
                old.unlink()
    return path


def find_checkpoints(directory: Path) -> list[Path]:
    """RETURNS (list[Path]): The checkpoints of a run, newest first."""
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if _NAME.fullmatch(path.name)), key=_step, reverse=True)


def load_newest_checkpoint(directory: Path) -> Checkpoint | None:
    """Read the newest checkpoint that is whole; a broken one is reported and passed over.

    directory (Path): Where checkpoints are.
    RETURNS (Checkpoint | None): The checkpoint, None if there is none.
    RAISES (TrainingError): E211 if there are checkpoints but all are broken.
    """
    paths = find_checkpoints(directory)
    for path in paths:
        try:
            return _read(path)
        except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RuntimeError) as error:
            warnings.warn(Warnings.W200.format(path=path, detail=error), ElmoWarning, stacklevel=2)
    if paths:
        raise TrainingError(Errors.E211.format(directory=directory, names=[path.name for path in paths]))
    return None


def _read(path: Path) -> Checkpoint:
    with open(path, "rb", buffering=0) as file:
        stored, metadata = read_header(file)
        progress = json.loads(metadata.get("progress", "null"))
        if not isinstance(progress, dict) or not progress.keys() >= _NEEDED:
            raise ValueError(f"its progress lacks one of {sorted(_NEEDED)}")
        tensors = {name: tensor.read() for name, tensor in stored.items()}
    if progress.pop("checksum", None) != _checksum(tensors, progress):
        raise ValueError("its checksum is wrong")
    return Checkpoint(tensors, progress)


def _checksum(tensors: dict[str, Tensor], progress: dict[str, Any]) -> int:
    """safetensors keeps none, and a flipped bit in a weight would not be seen."""
    value = zlib.crc32(json.dumps(progress, sort_keys=True).encode())
    for name in sorted(tensors):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, value)
    return value


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1
