"""The format of safetensors, read and written tensor by tensor, so that no second copy of all of them is held. (The library
of that name maps files into memory or wants them there as a whole.)

8 bytes     length of the header, little endian
header      JSON: name -> {"dtype", "shape", "data_offsets"}; under "__metadata__" strings by name
            the bytes of the tensors, one after another without gaps
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

_METADATA = "__metadata__"
# In the library's order.
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# Thousands of layers have a header of a megabyte. No tensor of ours has more than three dimensions.
_MOST_HEADER_BYTES = 2**22
_MOST_DIMENSIONS = 8
_MOST_BYTES = 2**48


class StoredTensor(NamedTuple):
    """A tensor whose bytes are still in the stream.

    dtype (torch.dtype), shape (tuple): What it is.
    start, end (int): Its bytes, counted from the beginning of the stream.
    stream (BinaryIO): The stream.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int
    stream: BinaryIO

    def read(self) -> Tensor:
        """RETURNS (Tensor): The values.

        RAISES (ValueError): If the stream ends too soon.
        """
        values = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        self._fill(values)
        return values

    def read_into(self, target: Tensor) -> None:
        """Overwrite the values of a tensor of the same shape, which may have another dtype.

        target (Tensor): The tensor.
        RAISES (ValueError): If the stream ends too soon.
        """
        if target.dtype is self.dtype and target.device.type == "cpu" and target.is_contiguous():
            self._fill(target)
        else:
            target.copy_(self.read())

    def _fill(self, values: Tensor) -> None:
        rest = _bytes_of(values)
        self.stream.seek(self.start)
        while rest:
            count = self.stream.readinto(rest)  # type: ignore[attr-defined]
            if not count:
                raise ValueError("it is cut off")
            rest = rest[count:]


def read_header(stream: BinaryIO) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Read what a stream holds, but none of the values.

    stream (BinaryIO): It must stay open as long as values are to be read.
    RETURNS (tuple[dict, dict]): The tensors, which fill the stream exactly, and the metadata, by their names.
    RAISES (ValueError, RecursionError): If it is not in the format.
    """
    size = stream.seek(0, 2)
    stream.seek(0)
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > min(size - 8, _MOST_HEADER_BYTES):
        raise ValueError("it is cut off, or no safetensors file")
    header = json.loads(stream.read(length).decode("utf-8"))
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata is no object of strings")
    tensors = {name: _stored(name, facts, 8 + length, stream) for name, facts in header.items()}
    end = 8 + length
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != end:
            raise ValueError(f"its tensors overlap or have gaps at byte {end}")
        end = tensor.end
    if end != size:
        raise ValueError(f"its tensors end at byte {end}, but it has {size}")
    return tensors, metadata


def pieces(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None, floats: torch.dtype | None = None
) -> Iterator[bytes | memoryview]:
    """The contents of a file, one piece after another; the library writes the same.

    tensors (Mapping[str, Tensor]): The tensors.
    metadata (Mapping[str, str] | None): What is to be known of them.
    floats (torch.dtype | None): What floats are to be stored as, one tensor at a time. Default: as they are.
    YIELDS (bytes | memoryview): The header, then the bytes of each tensor.
    """
    dtypes = {
        name: floats if floats and tensor.is_floating_point() else tensor.dtype for name, tensor in tensors.items()
    }
    # Widest first, so that the parts of a mapped file are aligned.
    widths = list(_NAMES)
    names = sorted(tensors, key=lambda name: (-widths.index(dtypes[name]), name))
    header: dict[str, Any] = {} if metadata is None else {_METADATA: dict(metadata)}
    end = 0
    for name in names:
        tensor, start = tensors[name], end
        end += tensor.numel() * dtypes[name].itemsize
        header[name] = {"dtype": _NAMES[dtypes[name]], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield _bytes_of(tensors[name].detach().to("cpu", dtypes[name]).contiguous())


def _stored(name: str, facts: Any, offset: int, stream: BinaryIO) -> StoredTensor:
    try:
        dtype, shape, (start, end) = _DTYPES[facts["dtype"]], facts["shape"], facts["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its header is not clear about '{name[:80]}'") from error
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS or not all(map(_is_size, (*shape, start, end))):
        raise ValueError(f"its header says of '{name[:80]}' what cannot be")
    if end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"'{name[:80]}' has {end - start} bytes, not as many as its shape {shape} needs")
    return StoredTensor(dtype, tuple(shape), offset + start, offset + end, stream)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_BYTES


def _bytes_of(values: Tensor) -> memoryview:
    """The memory of a tensor, to be read or overwritten."""
    return values.detach().reshape(-1).view(torch.uint8).numpy().data
