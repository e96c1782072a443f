"""Modules of which only the shapes are there, and the check of what was read into them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.softmax import AdaptiveSoftmax, FullSoftmax
from spacy_elmo.weights.modules import give_memory, is_finite, shapes_only
from tests.weights.test_native import CONFIG

BUILDERS = {
    "biLM": lambda: BiLM(CONFIG),
    "tanh": lambda: BiLM(BiLMConfig(activation="tanh", cells=8, projection=4)),
    "full softmax": lambda: FullSoftmax(4, 9),
    "adaptive softmax": lambda: AdaptiveSoftmax(4, 9, [3]),
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_shapes_are_those_of_the_module_itself(build):
    with shapes_only():
        module = build()
    expected = {name: tensor.shape for name, tensor in build().state_dict().items()}
    assert {tensor.device.type for tensor in module.state_dict().values()} == {"meta"}
    assert {name: tensor.shape for name, tensor in module.state_dict().items()} == expected
    give_memory(module)
    assert {(tensor.device.type, tensor.dtype) for tensor in module.state_dict().values()} == {("cpu", torch.float32)}
    assert {name: tensor.shape for name, tensor in module.state_dict().items()} == expected


def test_absurd_sizes_take_no_memory():
    with shapes_only():
        bilm = BiLM(BiLMConfig(cells=2**16, projection=2**16 - 1))
    assert sum(parameter.numel() for parameter in bilm.parameters()) > 2**36


def test_no_compiler_is_imported():
    """It would take many times as long as the loading."""
    build = "BiLM(BiLMConfig(activation='tanh')), FullSoftmax(4, 9), AdaptiveSoftmax(4, 9, [3])"
    code = (
        "import sys; from spacy_elmo.weights.modules import *; from spacy_elmo.lm.bilm import *; "
        "from spacy_elmo.lm.config import *; from spacy_elmo.lm.softmax import *\n"
        f"with shapes_only(): modules = BiLM(BiLMConfig(n_layers=1)), {build}\n"
        "give_memory(modules[0])\n"
        "print([name for name in ('torch._dynamo', 'sympy') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_one_value_that_is_not_finite_is_found(dtype, value, size):
    values = torch.full((size,), torch.finfo(dtype).max, dtype=dtype)
    assert is_finite(values)
    for index in {0, size // 2, size - 1}:
        spoiled = values.clone()
        spoiled[index] = value
        assert not is_finite(spoiled)


def test_nothing_is_finite():
    assert is_finite(torch.empty(0, 3))
