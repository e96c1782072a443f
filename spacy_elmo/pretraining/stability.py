"""What keeps a long run on its way: a loss that leaps, and a held-out perplexity that no longer falls."""

from __future__ import annotations

import math
from dataclasses import dataclass

_MEMORY = 0.9


@dataclass
class LossGuard:
    """Tells when the loss leaps.

    spike (float): Nats above the running mean that are too much; 0 to pass all that is finite.
    mean (float | None): The running mean; none before the first report.
    """

    spike: float
    mean: float | None = None

    def is_spike(self, loss: float) -> bool:
        """Look at the mean loss of the last steps, and remember it unless it leapt.

        RETURNS (bool): Whether it is not finite or too far above the running mean.
        """
        if not math.isfinite(loss) or (self.spike and self.mean is not None and loss > self.mean + self.spike):
            return True
        self.mean = loss if self.mean is None else _MEMORY * self.mean + (1 - _MEMORY) * loss
        return False


@dataclass
class Plateau:
    """Remembers the best held-out perplexity.

    text (str): Checksum of the held-out text; on other text all is forgotten.
    best (float | None): The lowest joint perplexity so far.
    best_step (int): Steps done then.
    since (int): Evaluations since then.
    """

    text: str = ""
    best: float | None = None
    best_step: int = 0
    since: int = 0

    def is_best(self, perplexity: float, step: int, text: str) -> bool:
        """Take in an evaluation.

        RETURNS (bool): Whether it was the best.
        """
        if text != self.text or self.best is None or perplexity < self.best:
            self.text, self.best, self.best_step, self.since = text, perplexity, step, 0
            return True
        self.since += 1
        return False
