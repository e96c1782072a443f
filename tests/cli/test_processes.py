"""`python -m spacy elmo embed` in a process of its own: stopped by others, and out of room."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "import spacy_elmo.cli; from spacy.cli._util import app; app()"


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@pytest.mark.skipif(os.name != "posix", reason="there is no polite request to end here")
def test_termination_leaves_nothing_behind(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    output = tmp_path / "v.h5"
    command = [sys.executable, "-c", COMMAND, "elmo", "embed", "-", str(output), "--source", str(source)]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), **streams) as process:
        try:
            deadline = time.monotonic() + 120
            while not any(tmp_path.iterdir()) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            assert [path.name for path in tmp_path.iterdir()] == [f".v.h5.{process.pid}.part"]
            process.terminate()
            assert process.wait(120) == 130
        finally:
            process.kill()
        assert process.stderr is not None
        said = process.stderr.read().decode()
    assert "Interrupted." in said and "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_one_message(tmp_path: Path) -> None:
    """HDF5 brings the process down where it cannot write what it has left at its end."""
    pytest.importorskip("resource")
    pytest.importorskip("h5py")
    script = """
        import resource
        import numpy as np
        from pathlib import Path
        from spacy_elmo.cli.vector_files import vector_writer
        from spacy_elmo.errors import ElmoError

        runs = [("a.h5", 100, 1), ("b.h5", 300_000, 200), ("c.npz", 100, 1), ("d.npz", 300_000, 200)]
        for name, room, pieces in runs:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
            try:
                with vector_writer(Path(name), (50,)) as writer:
                    for _ in range(pieces):
                        writer.write("text", np.zeros((1000, 2)), np.ones((1000, 50)))
            except ElmoError as error:
                print(writer.texts, error)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    run = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")
    texts, said = zip(*(line.split(" ", 1) for line in run.stdout.splitlines()))
    names = ["a.h5", "b.h5", "c.npz", "d.npz"]
    assert [line.split(". What")[0] for line in said] == [
        f"[ELMO-E406] {name} cannot be written: File too large" for name in names
    ]
    assert int(texts[1]) < 200 and int(texts[3]) < 200, "it goes on although there is no room"
    assert list(tmp_path.iterdir()) == []
