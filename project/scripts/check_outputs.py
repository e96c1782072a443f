"""Fail unless the outputs of a command are there: spaCy's projects skip what ended without an error, output or not.

python scripts/check_outputs.py training/ner/model-best/meta.json
"""

from __future__ import annotations

import sys
from pathlib import Path


def missing(paths: list[str]) -> list[str]:
    """RETURNS (list[str]): The paths of what is not there, or empty."""
    return [path for path in paths if not Path(path).is_file() or not Path(path).stat().st_size]


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    if lacking := missing(sys.argv[1:]):
        sys.exit(f"The command has not produced {', '.join(lacking)}. See above for what went wrong, and run it again.")
