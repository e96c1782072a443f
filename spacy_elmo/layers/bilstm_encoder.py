"""A bidirectional LSTM over tokens, the encoder of most networks that ELMo was published with.

spaCy's own, spacy.TorchBiLSTMEncoder.v1, reads the padding of shorter sequences as if it were text, so that a Doc has
other vectors in other company. Here sequences are packed. Parameters are Thinc's: no pickle, no state outside them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from spacy.util import registry
from thinc.api import Dropout, Model, Ops, chain
from thinc.initializers import glorot_uniform_init
from thinc.types import Floats2d, FloatsXd
from thinc.util import torch2xp, xp2torch

from .checks import require

if TYPE_CHECKING:
    import torch

_require = partial(require, "the architecture spacy_elmo.BiLSTMEncoder.v1")

Encoder = Model[list[Floats2d], list[Floats2d]]


@registry.architectures("spacy_elmo.BiLSTMEncoder.v1")  # type: ignore[untyped-decorator]
def build_bilstm_encoder(width: int, depth: int = 1, dropout: float = 0.0) -> Encoder:
    """Encode sequences by LSTMs that read them in both directions; half of the width comes from each.

    What comes out goes through the dropout that spaCy sets, `training.dropout`.

    width (int): Width of what goes in and of what comes out; even.
    depth (int): How many LSTMs lie one on another, from 1 up.
    dropout (float): Between these, in training.
    RETURNS (Model[list[Floats2d], list[Floats2d]]): The layer.
    RAISES (ConfigError): E300 if a setting cannot be.
    """
    _require("width", width, width > 0 and width % 2 == 0, "an even number from 2 up")
    _require("depth", depth, depth >= 1, "a whole number from 1 up")
    _require("dropout", dropout, 0 <= dropout < 1, "a number from 0 up to, but not, 1")
    lstm: Encoder = Model(
        "bilstm",
        _forward,
        init=_init,
        dims={"nI": width, "nO": width},
        params=dict.fromkeys(_parameter_names(depth)),
        attrs={"depth": depth, "dropout": dropout},
    )
    model: Encoder = chain(lstm, Dropout(0.0))
    model.set_dim("nO", width)
    return model


def _parameter_names(depth: int) -> list[str]:
    """In the order in which torch wants them."""
    kinds = ("input_weights", "hidden_weights", "input_bias", "hidden_bias")
    return [f"{kind}_{layer}_{way}" for layer in range(depth) for way in ("forward", "backward") for kind in kinds]


def _init(model: Encoder, X: list[Floats2d] | None = None, Y: object = None) -> None:
    cells = model.get_dim("nO") // 2
    rows = {"input_weights": 2 * cells, "hidden_weights": cells}
    for name in _parameter_names(model.attrs["depth"]):
        kind = name.rpartition("_")[0].rpartition("_")[0]
        if kind in rows:
            model.set_param(name, glorot_uniform_init(model.ops, (4 * cells, rows[kind])))
        else:
            bias = model.ops.alloc1f(4 * cells)
            if kind == "input_bias":
                # Torch has the gates in the order input, forget, cell, output. What is untrained should remember.
                bias[cells : 2 * cells] += 1.0
            model.set_param(name, bias)


def _forward(
    model: Encoder, sequences: list[Floats2d], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Floats2d]]]:
    import torch

    ops = model.ops
    lengths = ops.asarray1i([len(sequence) for sequence in sequences])
    if not lengths.sum():
        return sequences, _backprop_nothing
    names = _parameter_names(model.attrs["depth"])
    inputs = _to_torch(ops.flatten(sequences), is_train)
    weights = [_to_torch(model.get_param(name), is_train) for name in names]
    with torch.set_grad_enabled(is_train):
        outputs = _run(model, inputs, lengths.tolist(), weights, is_train)

    def backprop(d_outputs: list[Floats2d]) -> list[Floats2d]:
        outputs.backward(xp2torch(ops.flatten(d_outputs)))
        for name, weight in zip(names, weights):
            model.inc_grad(name, _gradient(weight, ops))
        return ops.unflatten(cast(Floats2d, _gradient(inputs, ops)), lengths)

    return ops.unflatten(cast(Floats2d, torch2xp(outputs.detach(), ops=ops)), lengths), backprop


def _backprop_nothing(d_outputs: list[Floats2d]) -> list[Floats2d]:
    return d_outputs


def _to_torch(array: Any, is_train: bool) -> torch.Tensor:
    # The optimizer may change weights in place before they are needed in backpropagation.
    return xp2torch(array.copy() if is_train else array, requires_grad=is_train)


def _gradient(tensor: torch.Tensor, ops: Ops) -> FloatsXd:
    return cast(FloatsXd, torch2xp(cast("torch.Tensor", tensor.grad), ops=ops))


def _run(
    model: Encoder, inputs: torch.Tensor, lengths: list[int], weights: list[torch.Tensor], is_train: bool
) -> torch.Tensor:
    """Pack the sequences that have words, and unpack what the LSTM makes of them: the rows are those of the inputs."""
    import torch
    from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

    sequences = [sequence for sequence in inputs.split(lengths) if len(sequence)]
    packed = pack_sequence(sequences, enforce_sorted=False)
    depth, cells = model.attrs["depth"], model.get_dim("nO") // 2
    start = inputs.new_zeros(2 * depth, len(sequences), cells)
    settings = (True, depth, model.attrs["dropout"], is_train, True)  # biases, layers, dropout, training, both ways
    data, _, _ = torch.lstm(packed.data, packed.batch_sizes, (start, start), weights, *settings)
    encoded = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    return torch.cat(unpack_sequence(encoded))
