"""The format of safetensors; the library of that name says what is right."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import pytest
import safetensors.torch
import torch

from spacy_elmo.weights.safetensors_stream import pieces, read_header

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
]


def some_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {f"x.{dtype}.ü": (torch.rand(3, 5, generator=generator) * 90).to(dtype) for dtype in DTYPES}
    return {
        **tensors,
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
        "turned": torch.arange(6.0).view(2, 3).t(),
    }


def written(header: Any, data: bytes = b"", length: int | None = None) -> io.BytesIO:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return io.BytesIO(struct.pack("<Q", len(text) if length is None else length) + text + data)


def one(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize("metadata", [None, {}, {"config": '"ü\n\\'}])
def test_the_library_writes_the_same(metadata):
    tensors = some_tensors()
    expected = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)
    assert b"".join(pieces(tensors, metadata)) == expected


def test_what_the_library_writes_is_read():
    tensors = {name: tensor.contiguous() for name, tensor in some_tensors().items()}
    found, metadata = read_header(io.BytesIO(safetensors.torch.save(tensors, {"a": "b"})))
    assert metadata == {"a": "b"}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype is tensor.dtype
        assert torch.equal(found[name].read(), tensor)


def test_floats_are_stored_in_another_precision():
    data = b"".join(pieces(some_tensors(), floats=torch.float16))
    found = safetensors.torch.load(data)
    for name, tensor in some_tensors().items():
        assert torch.equal(found[name], tensor.half() if tensor.is_floating_point() else tensor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_values_are_converted_into_a_tensor_that_is_there(dtype):
    found, _ = read_header(io.BytesIO(b"".join(pieces({"x": torch.arange(6, dtype=dtype).view(2, 3)}))))
    target = torch.zeros(2, 3)
    found["x"].read_into(target)
    assert torch.equal(target, torch.arange(6.0).view(2, 3))
    turned = torch.zeros(3, 2).t()
    found["x"].read_into(turned)
    assert torch.equal(turned, target)


def test_a_stream_that_gets_shorter_is_noticed():
    stream = io.BytesIO(b"".join(pieces({"x": torch.ones(9)})))
    found, _ = read_header(stream)
    stream.truncate(len(stream.getvalue()) - 1)
    with pytest.raises(ValueError, match="cut off"):
        found["x"].read()


@pytest.mark.parametrize(
    "stream",
    [
        io.BytesIO(b""),
        io.BytesIO(b"\0" * 8),
        written({}, length=3),
        written({}, length=2**63),
        written(b"[" * 10_000),
        written(b"\xff{}"),
        written([]),
        written({}, b"more"),
        written({"__metadata__": {"a": 1}}),
        written({"__metadata__": []}),
        written({"x": 3}),
        written({"x": {}}),
        written({"x": one("F7")}, b"\0" * 8),
        written({"x": one(["F32"])}, b"\0" * 8),
        written({"x": one(shape=2)}, b"\0" * 8),
        written({"x": one(shape=[2.0])}, b"\0" * 8),
        written({"x": one(shape=[-2], offsets=[0, -8])}),
        written({"x": one(shape=[True, 2])}, b"\0" * 8),
        written({"x": one(shape=[10**40], offsets=[0, 4 * 10**40])}),
        written({"x": one(shape=[1] * 10_000 + [2])}, b"\0" * 8),
        written({"x": one(offsets=[0])}, b"\0" * 8),
        written({"x": one(offsets=[0, 4])}, b"\0" * 8),
        written({"x": one(shape=[3])}, b"\0" * 8),
        written({"x": one("F64")}, b"\0" * 8),
        written({"x": one(offsets=[8, 16])}, b"\0" * 16),
        written({"x": one()}, b"\0" * 9),
        written({"x": one()}, b"\0" * 7),
        written({"x": one(), "y": one()}, b"\0" * 8),
        written({"x": one(), "y": one(offsets=[4, 12])}, b"\0" * 12),
        written({"x": one(), "y": one(offsets=[9, 17])}, b"\0" * 17),
    ],
)
def test_what_is_not_in_the_format(stream):
    with pytest.raises((ValueError, RecursionError)):
        read_header(stream)
