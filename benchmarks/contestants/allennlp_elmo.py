"""AllenNLP's `Elmo`, used as its documentation shows: `batch_to_ids`, then the module. The yardstick."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from contestants import stubs
from contestants.contract import Sentences

stubs.install()

from allennlp.modules.elmo import Elmo, batch_to_ids  # type: ignore[import-not-found]  # noqa: E402
from allennlp.nn.util import remove_sentence_boundaries  # type: ignore[import-not-found]  # noqa: E402


class AllenNLPElmo:
    """`Elmo` with one output (the equal mix of all layers), without gradients, each batch from zero state."""

    def __init__(self, options: str, weights: str, vocab_to_cache: list[str] | None = None) -> None:
        with torch.no_grad():
            self.elmo = Elmo(options, weights, num_output_representations=1, dropout=0.0, vocab_to_cache=vocab_to_cache)
        self.elmo.eval()

    def embed(self, sentences: Sentences) -> object:
        self._bilm._elmo_lstm.reset_states()
        with torch.inference_mode():
            return self.elmo(*self.inputs(sentences))["elmo_representations"][0]

    def layers(self, sentences: Sentences) -> np.ndarray:
        self._bilm._elmo_lstm.reset_states()
        with torch.inference_mode():
            output = self._bilm(*self.inputs(sentences))
            layers = [remove_sentence_boundaries(layer, output["mask"]) for layer in output["activations"]]
            mask = layers[0][1]
            return torch.stack([layer[mask] for layer, _ in layers], 1).numpy()

    def forget(self) -> None:
        """It remembers no words."""

    def inputs(self, sentences: Sentences) -> list[torch.Tensor]:
        return [batch_to_ids(sentences)]

    @property
    def _bilm(self) -> Any:
        return self.elmo._elmo_lstm


def load(options: str, weights: str, vocabulary: list[str]) -> AllenNLPElmo:
    """RETURNS (AllenNLPElmo): Ready to embed. The vocabulary is not used."""
    return AllenNLPElmo(options, weights)
