"""Read tensors that torch.save wrote, and nothing else.

torch's own reader runs no code of the file's with `weights_only=True`. But it still makes objects of any size and depth that the
file asks for; so the instructions are looked through first, and only those that a dictionary of tensors needs are let pass.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from ..errors import Errors, WeightsError, detail_of

_GLOBALS = {
    "collections OrderedDict",
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2",
    *(f"torch {kind}Storage" for kind in ("BFloat16", "Double", "Float", "Half")),
}
_STRINGS = {"BINUNICODE", "SHORT_BINSTRING"}
_REMEMBER = {"BINPUT", "LONG_BINPUT"}
_RECALL = {"BINGET", "LONG_BINGET"}
_USED_AGAIN = {"GLOBAL", *_STRINGS}
_INSTRUCTIONS = {
    *("PROTO", "STOP", "GLOBAL", "REDUCE", "BUILD", "BINPERSID", "MARK", "NONE", "NEWTRUE", "NEWFALSE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS"),
    *_STRINGS,
    *_REMEMBER,
    *_RECALL,
}
# A tensor takes about forty. Bounds the time, and how deep objects may lie in each other.
_MOST_INSTRUCTIONS = 2**14
_MOST_INSTRUCTION_BYTES = 2**22

# How files begin: a zip archive, or, before torch 1.6, torch's magic number as a pickle of its own.
_ZIP = b"PK\x03\x04"
_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
# Pickles of that older form: magic number, version, sizes of types, the tensors, the order of their data.
_OLD_PICKLES = 5


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a dictionary of tensors that torch.save wrote, in either of its forms.

    path (Path): The file.
    RETURNS (dict[str, Tensor]): Tensors of floats on the CPU, together no larger than the file.
    RAISES (WeightsError): E156 if the file is damaged or holds anything else.
    """
    try:
        _look_through(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
        _require_tensors(found, path.stat().st_size)
    except Exception as error:  # broken bytes make zipfile, pickletools and torch raise nearly anything
        # torch advises at length how to read it all the same.
        problem = "torch finds more than tensors" if str(error).startswith("Weights only") else detail_of(error)
        raise WeightsError(Errors.E156.format(path=path, problem=problem)) from error
    return {name: tensor.detach() for name, tensor in found.items()}


def _look_through(path: Path) -> None:
    """RAISES (ValueError): If the file does more than to make a dictionary of tensors."""
    with path.open("rb") as file:
        begin = file.read(len(_MAGIC))
        file.seek(0)
        if begin.startswith(_ZIP):
            _look_through_pickle(io.BytesIO(_pickle_in_zip(path)))
        elif begin == _MAGIC:
            for _ in range(_OLD_PICKLES):
                _look_through_pickle(file)
        else:
            raise ValueError("it is no file of torch.save")


def _pickle_in_zip(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("its parts are compressed, as torch.save never does")
        if sum(entry.file_size for entry in entries) > path.stat().st_size:
            raise ValueError("its parts are larger than the file")
        pickles = [entry for entry in entries if entry.filename.endswith(".pkl")]
        if len(pickles) != 1 or pickles[0].file_size > _MOST_INSTRUCTION_BYTES:
            raise ValueError(f"it has {len(pickles)} parts named .pkl, not one of moderate size")
        return archive.read(pickles[0])


def _look_through_pickle(file: IO[bytes]) -> None:
    """Look through one pickle; the file then stands behind it."""
    remembered: dict[object, str] = {}
    before = ""
    start = file.tell()
    for count, (instruction, argument, position) in enumerate(pickletools.genops(file)):
        name = instruction.name
        if count > _MOST_INSTRUCTIONS or (position or 0) - start > _MOST_INSTRUCTION_BYTES:
            raise ValueError("it has more instructions than a dictionary of tensors needs")
        if name not in _INSTRUCTIONS or (name == "PROTO" and argument != 2):
            raise ValueError(f"it has the instruction {name}, which a dictionary of tensors does not need")
        if name == "GLOBAL" and argument not in _GLOBALS:
            raise ValueError(f"it asks for {str(argument)[:80]!r}, which a dictionary of tensors does not need")
        if name in _REMEMBER:
            remembered[argument] = before
        # Containers that hold each other again and again grow without bound when they are looked into.
        if name in _RECALL and remembered.get(argument) not in _USED_AGAIN:
            raise ValueError("it uses a container twice, which a dictionary of tensors does not")
        before = name


def _require_tensors(found: object, size: int) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, no dictionary of tensors")
    taken = 0
    for name, tensor in found.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ValueError(f"{str(name)[:80]!r} is a {type(tensor).__name__}, no tensor")
        if tensor.layout is not torch.strided or not tensor.is_floating_point():
            raise ValueError(f"{name[:80]!r} holds {tensor.dtype}, no floats")
        # Steps of 0 make any shape of a single value.
        taken += tensor.numel() * tensor.element_size()
    if taken > size:
        raise ValueError("its tensors are larger than the file")
