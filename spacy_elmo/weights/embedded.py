"""The models that come with spacy-elmo."""

from __future__ import annotations

from pathlib import Path

_DIRECTORY = Path(__file__).parent.parent / "models"

EMBEDDED_MODELS = {name: _DIRECTORY / name for name in ("en_elmo_sm", "en_elmo_md")}
"""By what they are called as a source, where no file has that name."""

EMBEDDED_MODEL = EMBEDDED_MODELS["en_elmo_sm"]
"""The one that is used if none is named."""
