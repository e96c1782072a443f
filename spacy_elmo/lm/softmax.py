"""Output heads: from a hidden state of an LM to the log-probability of a word.

One head serves both directions. Word ids are ordered by falling frequency (see `pretraining.vocabulary`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError, Errors

_MOST_LOGITS = 2**26


class FullSoftmax(nn.Module):
    """One weight vector and one bias for each word (bilm-tf's head, without sampling).

    projection (int): Width of a hidden state.
    n_words (int): Words of the vocabulary.
    """

    kind = "full"

    def __init__(self, projection: int, n_words: int) -> None:
        super().__init__()
        _require_sizes(projection=projection, n_words=n_words)
        self.settings: dict[str, Any] = {"kind": self.kind, "projection": projection, "n_words": n_words}
        self.output = nn.Linear(projection, n_words)
        nn.init.normal_(self.output.weight, std=projection**-0.5)
        nn.init.zeros_(self.output.bias)

    def forward(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Log-probabilities of words, normalised over the whole vocabulary.

        hidden (Tensor): (places, projection). words (Tensor): int64, (places,). RETURNS (Tensor): (places,), in nats.
        """
        # Without gradients no more logits at a time than memory is sure to hold; with them all are needed at once.
        places = max(1, _MOST_LOGITS // self.output.out_features)
        if torch.is_grad_enabled() or len(words) <= places:
            return _log_probabilities(self.output(hidden), words)
        parts = zip(hidden.split(places), words.split(places))
        return torch.cat([_log_probabilities(self.output(part), targets) for part, targets in parts])


class AdaptiveSoftmax(nn.Module):
    """Frequent words in the head, rare ones in clusters of smaller width (Grave et al. 2017).

    projection (int): Width of a hidden state.
    n_words (int): Words of the vocabulary.
    cutoffs (Sequence[int]): Where the clusters begin, in word ids.
    shrink (float): How much narrower each further cluster is.
    """

    kind = "adaptive"

    def __init__(self, projection: int, n_words: int, cutoffs: Sequence[int], shrink: float = 4.0) -> None:
        super().__init__()
        _require_sizes(projection=projection, n_words=n_words)
        if not isinstance(shrink, (int, float)) or not 1 <= shrink < float("inf"):
            raise ConfigError(Errors.E001.format(name="softmax.shrink", value=shrink, expected="a number from 1 up"))
        self.settings: dict[str, Any] = {
            "kind": self.kind,
            "projection": projection,
            "n_words": n_words,
            "cutoffs": list(cutoffs),
            "shrink": shrink,
        }
        if not cutoffs or list(cutoffs) != sorted(set(cutoffs)) or cutoffs[0] < 1 or cutoffs[-1] >= n_words:
            expected = f"rising word ids between 1 and the number of words, {n_words}"
            raise ConfigError(Errors.E001.format(name="softmax.cutoffs", value=list(cutoffs), expected=expected))
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
        log_probabilities = _log_probabilities(self.head(hidden), in_head)
        for depth, (first, tail) in enumerate(zip(cutoffs, self.tails), 1):
            members = (cluster == depth).nonzero().squeeze(1)
            within = _log_probabilities(tail(hidden[members]), words[members] - first)
            log_probabilities = log_probabilities.index_add(0, members, within)
        return log_probabilities


def _log_probabilities(logits: Tensor, words: Tensor) -> Tensor:
    wide = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    return -nn.functional.cross_entropy(wide, words, reduction="none")


def _require_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise ConfigError(
                Errors.E001.format(name=f"softmax.{name}", value=value, expected="a whole number from 1 up")
            )


OutputHead = FullSoftmax | AdaptiveSoftmax


def build_head(settings: dict[str, Any]) -> OutputHead:
    """An output head with new weights from what `head.settings` holds.

    RAISES (ConfigError): E001 for an unknown kind or cutoffs that cannot be.
    """
    heads = {FullSoftmax.kind: FullSoftmax, AdaptiveSoftmax.kind: AdaptiveSoftmax}
    settings = dict(settings)
    kind = settings.pop("kind", None)
    if kind not in heads:
        raise ConfigError(Errors.E001.format(name="softmax.kind", value=kind, expected=f"one of {sorted(heads)}"))
    head: OutputHead = heads[kind](**settings)
    return head
