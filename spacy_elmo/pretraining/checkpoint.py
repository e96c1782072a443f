"""A training run on disk: all that is needed to go on exactly where it was, in one safetensors file without pickle."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..errors import ElmoWarning, Errors, TrainingError, Warnings
from ..weights.files import write_atomically

_NAME = re.compile(r"step-(\d+)\.safetensors")


@dataclass
class Checkpoint:
    """tensors: weights, head, optimizer and generator under prefixed names. progress: the rest, in JSON's types."""

    tensors: dict[str, Tensor]
    progress: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """RETURNS (dict[str, Tensor]): The tensors of one part, without its prefix."""
        return {name[len(prefix) + 1 :]: t for name, t in self.tensors.items() if name.startswith(f"{prefix}.")}


def save_checkpoint(directory: Path, step: int, checkpoint: Checkpoint, keep: int = 2) -> Path:
    """Write a checkpoint and delete all but the newest.

    directory (Path): Where checkpoints are.
    step (int): Steps done.
    checkpoint (Checkpoint): What to write.
    keep (int): Checkpoints to keep.
    RETURNS (Path): The file.
    RAISES (TrainingError): E210 if it cannot be written; earlier ones are untouched.
    """
    path = directory / f"step-{step:08}.safetensors"
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    try:
        write_atomically(path, save(tensors, metadata={"progress": json.dumps(checkpoint.progress)}))
    except OSError as error:
        raise TrainingError(Errors.E210.format(path=path, detail=error)) from error
    for old in find_checkpoints(directory)[keep:]:
        old.unlink(missing_ok=True)
    return path


def find_checkpoints(directory: Path) -> list[Path]:
    """RETURNS (list[Path]): The checkpoints of a run, newest first."""
    if not directory.is_dir():
        return []
    found = [(int(match[1]), path) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def load_newest_checkpoint(directory: Path) -> Checkpoint | None:
    """Read the newest checkpoint that is whole; a broken one is reported and passed over.

    directory (Path): Where checkpoints are.
    RETURNS (Checkpoint | None): The checkpoint, None if there is none.
    RAISES (TrainingError): E211 if there are checkpoints but all are broken.
    """
    paths = find_checkpoints(directory)
    for path in paths:
        try:
            data = path.read_bytes()
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            return Checkpoint(load(data), json.loads(header["__metadata__"]["progress"]))
        except (SafetensorError, OSError, ValueError, KeyError, OverflowError) as error:
            warnings.warn(Warnings.W200.format(path=path, detail=error), ElmoWarning, stacklevel=2)
    if paths:
        raise TrainingError(Errors.E211.format(directory=directory, names=[path.name for path in paths]))
    return None
