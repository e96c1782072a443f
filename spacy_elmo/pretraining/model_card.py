"""The README.md that goes with trained weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..lm.config import BiLMConfig
from .evaluate import Perplexity


def model_card(
    config: BiLMConfig,
    settings: dict[str, Any],
    steps: int,
    words: int,
    vocabulary: int,
    held_out: Perplexity | None,
    begun_from: Mapping[str, str] | None = None,
    before: Perplexity | None = None,
) -> str:
    """What a run knows of itself, in Markdown; data, licence and use are for its author to add.

    config (BiLMConfig): The biLM.
    settings (dict): How it was trained, in JSON's types.
    steps (int), words (int): Steps done and words read.
    vocabulary (int): Words of the softmax.
    held_out (Perplexity | None): What the weights reach on the held-out text.
    begun_from (Mapping | None): From `starting_model.origin_of`.
    before (Perplexity | None): What the weights that it began with reach on the same text.
    RETURNS (str): The text.
    """
    lines = ["# A biLM trained with spacy-elmo", "", "## Architecture", ""]
    lines += [f"- {name}: {value}" for name, value in config.to_dict().items()]
    lines += ["", "## Training", ""]
    if begun_from is not None:
        lines.append(f"- begun from the weights of: {begun_from['name']}")
        lines.append(f"- licence of those weights: {begun_from.get('licence', 'not known')}")
    lines += [f"- steps: {steps:,}", f"- words read: {words:,}", f"- vocabulary: {vocabulary:,}"]
    lines += [f"- {name}: {value}" for name, value in settings.items()]
    lines += ["", "## Held-out perplexity (full softmax)", ""]
    if held_out is None:
        lines.append("Not measured: no held-out text was given.")
    else:
        lines += [f"- {name}" for name in _said_of(held_out)]
    if held_out is not None and before is not None:
        lines += ["", "Of the weights that it began with, on the same text:", ""]
        lines += [f"- {name}" for name in _said_of(before)]
    return "\n".join(lines) + "\n"


def _said_of(found: Perplexity) -> list[str]:
    joint = f"joint: {found.joint:.2f}, over {found.words:,} predicted words a direction"
    return [f"forward: {found.forward:.2f}", f"backward: {found.backward:.2f}", joint]
