"""The plain output head."""

from __future__ import annotations

from torch import Tensor, nn

from .output_head import OutputHead, linear_log_probabilities, require_whole


class FullSoftmax(OutputHead):
    """One weight vector and one bias for each word (bilm-tf's head, without sampling).

    projection (int): Width of a hidden state.
    n_words (int): Words of the vocabulary.
    """

    kind = "full"

    def __init__(self, projection: int, n_words: int) -> None:
        super().__init__()
        require_whole(1, projection=projection, n_words=n_words)
        self.settings = {"kind": self.kind, "projection": projection, "n_words": n_words}
        self.output = nn.Linear(projection, n_words)
        nn.init.normal_(self.output.weight, std=projection**-0.5)
        nn.init.zeros_(self.output.bias)

    def forward(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Log-probabilities of words, normalised over the whole vocabulary.

        hidden (Tensor): (places, projection). words (Tensor): int64, (places,). RETURNS (Tensor): (places,), in nats.
        """
        return linear_log_probabilities(hidden, self.output.weight, self.output.bias, words)
