"""Make a biLM wider without changing what it predicts, to go on training it.

python scripts/widen_model.py en_elmo_sm training/wide --projection 256 --cells 1024
python -m spacy elmo pretrain CORPUS --init-from training/wide --output training/run

From new values to those that were there go weights of 0, so that the wider model computes the old values, and its softmax the
probabilities, as before. All other new weights are drawn as those of a new model are, so that the zeros learn at once. It keeps
the function, as Net2Net does (Chen et al. 2016), which copies values instead.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

from spacy_elmo.errors import ElmoError
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.lstm import ProjectedLSTM
from spacy_elmo.lm.softmax import AdaptiveSoftmax, OutputHead, build_head
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.weights.formats import load_model
from spacy_elmo.weights.native import VOCABULARY_FILE, save_bilm, save_head


def widen(bilm: BiLM, head: OutputHead, projection: int, cells: int) -> tuple[BiLM, OutputHead]:
    """RETURNS (tuple): A biLM and its head, wider, with the same probabilities of words."""
    config = bilm.config
    if not isinstance(head, AdaptiveSoftmax) or not (config.has_lstm_projection and config.has_character_projection):
        sys.exit("Only biLMs over characters, with projections and an adaptive softmax, can be made wider.")
    if projection < config.projection or cells < config.cells:
        sys.exit(f"The model has a projection of {config.projection} and {config.cells} cells already.")
    wide = BiLM(replace(bilm.config, projection=projection, cells=cells))
    old_state, state = bilm.encoder.state_dict(), wide.encoder.state_dict()
    for name, old in old_state.items():
        state[name][..., : old.shape[-1]] = old  # of the projection, the columns that there were
    for old_stack, stack in zip((bilm.forward_lm, bilm.backward_lm), (wide.forward_lm, wide.backward_lm)):
        for old_layer, layer in zip(old_stack, stack):
            _widen_layer(old_layer, layer)
    wide_head = build_head({**head.settings, "projection": projection})
    assert isinstance(wide_head, AdaptiveSoftmax)
    _widen_head(head, wide_head)
    return wide, wide_head


def _widen_layer(old: ProjectedLSTM, new: ProjectedLSTM) -> None:
    assert old.projection_weight is not None and new.projection_weight is not None
    cells, projection = old.projection_weight.shape
    for old_weight, weight in ((old.input_weight, new.input_weight), (old.recurrent_weight, new.recurrent_weight)):
        for old_gate, gate in zip(old_weight.chunk(4, 1), weight.data.chunk(4, 1)):
            gate[:projection, :cells] = old_gate
            gate[projection:, :cells] = 0
    for old_gate, gate in zip(old.bias.chunk(4), new.bias.data.chunk(4)):
        gate[:cells] = old_gate
    new.projection_weight.data[:cells, :projection] = old.projection_weight
    new.projection_weight.data[cells:, :projection] = 0


def _widen_head(old: AdaptiveSoftmax, new: AdaptiveSoftmax) -> None:
    pairs = [(old.head, new.head)]
    for old_tail, tail in zip(old.tails, new.tails):
        pairs += zip(old_tail, tail)
    for old_linear, linear in pairs:
        rows, columns = old_linear.weight.shape
        linear.weight.data[:rows, :columns] = old_linear.weight
        linear.weight.data[:rows, columns:] = 0
        if linear.bias is not None:
            linear.bias.data[:rows] = old_linear.bias


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="what --init-from takes, with its softmax")
    parser.add_argument("output", type=Path)
    parser.add_argument("--projection", type=int, required=True)
    parser.add_argument("--cells", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    model = load_model(arguments.model, with_softmax=True)
    if model.head is None or model.vocabulary is None:
        sys.exit(f"{arguments.model} has no softmax.")
    with torch.no_grad():
        bilm, head = widen(model.bilm, model.head, arguments.projection, arguments.cells)
    save_bilm(bilm, arguments.output)
    save_head(head, arguments.output)
    Vocabulary(model.vocabulary).save(arguments.output / VOCABULARY_FILE)


if __name__ == "__main__":
    try:
        main()
    except ElmoError as error:
        sys.exit(str(error))
