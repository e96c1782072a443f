"""The README.md that goes with trained weights."""

from __future__ import annotations

from typing import Any

from ..lm.config import BiLMConfig
from .evaluate import Perplexity


def model_card(
    config: BiLMConfig, settings: dict[str, Any], steps: int, words: int, vocabulary: int, held_out: Perplexity | None
) -> str:
    """RETURNS (str): What the run knows of itself, in Markdown; data, licence and use are for its author to add."""
    lines = ["# A biLM trained with spacy-elmo", "", "## Architecture", ""]
    lines += [f"- {name}: {value}" for name, value in config.to_dict().items()]
    lines += ["", "## Training", "", f"- steps: {steps:,}", f"- words read: {words:,}", f"- vocabulary: {vocabulary:,}"]
    lines += [f"- {name}: {value}" for name, value in settings.items()]
    lines += ["", "## Held-out perplexity (full softmax)", ""]
    if held_out is None:
        lines.append("Not measured: no held-out text was given.")
    else:
        lines.append(f"- forward: {held_out.forward:.2f}")
        lines.append(f"- backward: {held_out.backward:.2f}")
        lines.append(f"- joint: {held_out.joint:.2f}, over {held_out.words:,} predicted words a direction")
    return "\n".join(lines) + "\n"
