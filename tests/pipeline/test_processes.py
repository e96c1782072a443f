"""Several processes: the same vectors, and no hanging after torch has run in the parent."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from spacy.language import Language

TEXTS = ["I sat on the bank", "", "they paid the bank", "a", "and so on ."] * 3

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.mark.parametrize("batch_size", [2, 100])
def test_two_processes_give_the_same_vectors(nlp: Language, batch_size: int):
    expected = [nlp(text)._.elmo for text in TEXTS]
    docs = list(nlp.pipe(TEXTS, n_process=2, batch_size=batch_size))
    assert [doc.text for doc in docs] == TEXTS
    for doc, vectors in zip(docs, expected):
        np.testing.assert_allclose(doc._.elmo, vectors, atol=1e-5)
        np.testing.assert_allclose(doc.tensor, vectors, atol=1e-5)


def test_two_processes_bring_the_layers_along(make_nlp):
    nlp = make_nlp(store="layers")
    (doc,) = nlp.pipe(["a bank"], n_process=2)
    np.testing.assert_allclose(doc._.elmo_layers, nlp("a bank")._.elmo_layers, atol=1e-5)


def test_two_processes_load_weights_that_the_parent_did_not(make_nlp, nlp: Language):
    docs = list(make_nlp().pipe(["a bank", "they paid"], n_process=2, batch_size=1))
    np.testing.assert_allclose(docs[1]._.elmo, nlp("they paid")._.elmo, atol=1e-5)


@needs_fork
def test_fork_after_torch_ran_in_threads_does_not_hang(source: Path):
    script = f"""
        import spacy, spacy_elmo, torch
        torch.set_num_threads(2)
        nlp = spacy.blank("en")
        nlp.add_pipe("elmo", config={{"model": {{"source": {str(source)!r}}}}})
        matrix = torch.ones(600, 600)
        (matrix @ matrix).tanh()   # starts torch's threads, which the children do not inherit
        nlp("a bank")
        docs = list(nlp.pipe(["a bank of words " * 400] * 4, n_process=2, batch_size=1))
        assert all(doc._.elmo.shape == (1600, 16) for doc in docs)
        print("threads", torch.get_num_threads())
    """
    run = run_python(script)
    assert run.stdout.split() == ["threads", "2"], run.stderr


@needs_fork
def test_only_children_are_cut_to_one_thread():
    script = """
        import os, torch
        import spacy_elmo.pipeline.forking
        torch.set_num_threads(2)
        if os.fork() == 0:
            os._exit(torch.get_num_threads())
        print(os.waitstatus_to_exitcode(os.wait()[1]), torch.get_num_threads())
    """
    run = run_python(script)
    assert run.stdout.split() == ["1", "2"], run.stderr


def run_python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
