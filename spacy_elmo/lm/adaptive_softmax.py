"""An output head that spends less on rare words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..errors import ConfigError, Errors
from .devices import to_device
from .output_head import OutputHead, log_probabilities_of, require_whole


class AdaptiveSoftmax(OutputHead):
    """Frequent words in the head, rare ones in clusters of smaller width (Grave et al. 2017).

    projection (int): Width of a hidden state.
    n_words (int): Words of the vocabulary.
    cutoffs (Sequence[int]): Where the clusters begin, in word ids.
    shrink (float): How much narrower each further cluster is.
    """

    kind = "adaptive"

    def __init__(self, projection: int, n_words: int, cutoffs: Sequence[int], shrink: float = 4.0) -> None:
        super().__init__()
        require_whole(1, projection=projection, n_words=n_words)
        if not isinstance(shrink, (int, float)) or not 1 <= shrink < float("inf"):
            raise ConfigError(Errors.E001.format(name="softmax.shrink", value=shrink, expected="a number from 1 up"))
        if not _are_cutoffs(cutoffs, n_words):
            expected = f"rising word ids between 1 and the number of words, {n_words}"
            raise ConfigError(Errors.E001.format(name="softmax.cutoffs", value=cutoffs, expected=expected))
        sizes = {"projection": projection, "n_words": n_words}
        self.settings = {"kind": self.kind, **sizes, "cutoffs": list(cutoffs), "shrink": shrink}
        bounds = [*cutoffs, n_words]
        self.head = nn.Linear(projection, bounds[0] + len(cutoffs))
        self.tails = nn.ModuleList()
        for depth, (first, end) in enumerate(pairwise(bounds), 1):
            width = max(1, int(projection / shrink**depth))
            tail = nn.Linear(projection, width, bias=False), nn.Linear(width, end - first, bias=False)
            self.tails.append(nn.Sequential(*tail))
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
            else:
                nn.init.zeros_(parameter)

    def forward(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Log-probabilities of words, normalised over the whole vocabulary.

        hidden (Tensor): (places, projection). words (Tensor): int64, (places,). RETURNS (Tensor): (places,), in nats.
        """
        cutoffs = self.settings["cutoffs"]
        cluster = torch.bucketize(words, torch.tensor(cutoffs, device=words.device), right=True)
        in_head = torch.where(cluster == 0, words, cutoffs[0] + cluster - 1)
        found = log_probabilities_of(self.head, hidden, in_head)
        for depth, (first, tail) in enumerate(zip(cutoffs, self.tails), 1):
            members = (cluster == depth).nonzero().squeeze(1)
            places = to_device(members, hidden.device)
            within = log_probabilities_of(tail, hidden[places], words[members] - first)
            found = found.index_add(0, places, within)
        return found


def _are_cutoffs(cutoffs: object, n_words: int) -> bool:
    if not isinstance(cutoffs, (list, tuple)) or not all(isinstance(cutoff, int) for cutoff in cutoffs):
        return False
    return bool(cutoffs) and list(cutoffs) == sorted({*cutoffs}) and cutoffs[0] >= 1 and cutoffs[-1] < n_words
