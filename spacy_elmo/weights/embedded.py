"""The model that comes with spacy-elmo."""

from __future__ import annotations

from pathlib import Path

EMBEDDED_NAME = "en_elmo_sm"
"""What it is called as a source, where no file has that name."""

EMBEDDED_MODEL = Path(__file__).parent.parent / "models" / EMBEDDED_NAME
