"""Processes in which spacy-elmo is as good as installed: importable, and with its entry points."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def installed_environment(directory: Path) -> dict[str, str]:
    """Write what pip would tell spaCy of spacy-elmo.

    directory (Path): An empty directory.
    RETURNS (dict[str, str]): The environment of such a process.
    """
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(directory)]), "OMP_NUM_THREADS": "1"}
