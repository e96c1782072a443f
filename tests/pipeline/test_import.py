"""What an import does, seen from a fresh process."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def run_python(script: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_import_registers_factory_architectures_and_attributes():
    script = """
        import spacy_elmo
        import spacy
        from spacy.tokens import Doc
        nlp = spacy.blank("en")
        nlp.add_pipe("elmo")
        assert spacy.registry.architectures.get("spacy_elmo.BiLM.v1")
        assert spacy.registry.architectures.get("spacy_elmo.ScalarMix.v1")
        assert Doc.has_extension("elmo")
        print(spacy_elmo.__version__)
    """
    assert run_python(script) == "0.1.0"


def test_import_brings_no_torch_of_its_own():
    # Thinc imports torch wherever it is installed; hidden from Thinc, nothing else of ours may import it.
    script = """
        import sys
        sys.modules["torch"] = None
        import spacy_elmo, spacy
        spacy.blank("en")
        import spacy_elmo.pipeline.factory, spacy_elmo.pipeline.component
        print(sys.modules["torch"])
    """
    assert run_python(script) == "None"


def test_language_model_imports_where_there_is_no_spacy():
    script = """
        import sys
        class NoSpacy:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("spacy", "thinc"):
                    raise ModuleNotFoundError(name, name=name.split(".")[0])
        sys.meta_path.insert(0, NoSpacy())
        import spacy_elmo
        from spacy_elmo import BiLM, BiLMConfig
        print("spacy" in sys.modules)
    """
    assert run_python(script) == "False"


def test_foreign_extension_does_not_break_the_import():
    script = """
        from spacy.tokens import Doc
        Doc.set_extension("elmo", default="mine")
        import spacy_elmo
        print(Doc.get_extension("elmo")[0])
    """
    assert run_python(script) == "mine"


@pytest.mark.parametrize(
    "name", ["BiLM", "BiLMConfig", "Elmo", "ElmoError", "load_bilm", "save_bilm", "load_bilm_hdf5"]
)
def test_public_names_are_there(name: str):
    import spacy_elmo

    assert getattr(spacy_elmo, name).__name__ == name
    assert name in spacy_elmo.__all__ and name in dir(spacy_elmo)


def test_public_names_are_those_of_all():
    import spacy_elmo

    assert set(spacy_elmo.__all__) == {"__version__", *spacy_elmo._PUBLIC}


def test_unknown_name_is_an_attribute_error():
    import spacy_elmo

    with pytest.raises(AttributeError, match="no_such_name"):
        spacy_elmo.no_such_name
