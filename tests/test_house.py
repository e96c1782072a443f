"""The rules of the house, held over the source itself: which room may import which, how large things may grow, and that
the catalogue of errors and the code agree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from spacy_elmo.errors import Errors, Warnings

PACKAGE = Path(__file__).resolve().parent.parent / "spacy_elmo"
FILES = sorted(PACKAGE.rglob("*.py"))

MAX_LINES_OF_A_FILE = 400
MAX_LINES_OF_A_FUNCTION = 60

# What a room may import of ours, besides itself and the catalogue of errors.
ROOMS: dict[str, set[str]] = {
    "lm": set(),
    "weights": {"lm"},
    "pretraining": {"lm", "weights"},
    "layers": {"lm", "weights"},
    "pipeline": {"lm", "weights", "layers"},
    "cli": {"lm", "weights", "pretraining", "layers", "pipeline"},
}
# What a room may not import of others.
FOREIGN: dict[str, set[str]] = {
    "lm": {"spacy", "thinc"},
    "weights": {"spacy", "thinc"},
    "pretraining": {"spacy", "thinc"},
}

by_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path, nodes: Iterator[ast.AST] | None = None) -> Iterator[str]:
    """Absolute names of all modules that a file imports, inside functions too."""
    package = ("spacy_elmo", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree_of(path)) if nodes is None else nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(path: Path) -> str | None:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


def test_rooms_are_those_of_the_house():
    assert {room_of(path) for path in FILES} - {None} <= set(ROOMS)


@by_file
def test_imports_run_one_way(path: Path):
    room = room_of(path)
    if room is None:
        return
    of_ours = {name.split(".")[1] for name in imports(path) if name.startswith("spacy_elmo.")}
    others = (of_ours & set(ROOMS)) - {room}
    assert others <= ROOMS[room], f"{room} may import {sorted(ROOMS[room])} only"


@by_file
def test_language_model_and_training_know_no_spacy(path: Path):
    of_others = {name.split(".")[0] for name in imports(path)}
    assert not of_others & FOREIGN.get(room_of(path) or "", set())


@by_file
def test_nothing_is_pickled(path: Path):
    assert not {name.split(".")[0] for name in imports(path)} & {"pickle", "cPickle", "dill", "cloudpickle", "joblib"}


@by_file
def test_no_file_is_too_long(path: Path):
    if path == PACKAGE / "errors.py":
        pytest.skip("the catalogue of messages has one entry for each thing that can go wrong, and no logic")
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES_OF_A_FILE


@by_file
def test_no_function_is_too_long(path: Path):
    functions = [node for node in ast.walk(tree_of(path)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES_OF_A_FUNCTION} == {}


@by_file
def test_nothing_is_asserted_bare(path: Path):
    assert [node.lineno for node in ast.walk(tree_of(path)) if isinstance(node, ast.Assert)] == []


@by_file
def test_no_default_is_mutable(path: Path):
    mutable = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    nodes = [node for node in ast.walk(tree_of(path)) if isinstance(node, functions)]
    defaults = [default for node in nodes for default in [*node.args.defaults, *node.args.kw_defaults]]
    assert [default.lineno for default in defaults if isinstance(default, mutable)] == []


@by_file
def test_torch_globals_are_left_alone(path: Path):
    # The one exception: children of a fork cannot use their parent's threads.
    forbidden = {
        "manual_seed",
        "set_default_device",
        "set_default_dtype",
        "set_num_interop_threads",
        "set_num_threads",
        "use_deterministic_algorithms",
    }
    if path.relative_to(PACKAGE).as_posix() == "pipeline/forking.py":
        forbidden.discard("set_num_threads")
    called = {node.attr for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute)}
    if room_of(path) not in ("pretraining", "cli"):
        assert not called & forbidden


@pytest.mark.parametrize(
    "name",
    [
        "__init__.py",
        "pipeline/factory.py",
        "pipeline/sentences.py",
        "pipeline/unfreezing.py",
        "layers/bilm_model.py",
        "layers/bilstm_encoder.py",
        "layers/handover.py",
        "layers/layer_norm.py",
        "layers/listener.py",
        "layers/own_elmo.py",
        "layers/scalar_mix.py",
        "layers/schedules.py",
        "layers/shim.py",
        "layers/tok2vec.py",
        "weights/embedded.py",
    ],
)
def test_what_spacy_always_imports_needs_no_torch(name: str):
    """spaCy imports the factory for every nlp object, whether it has an elmo pipe or not."""
    path = PACKAGE / name
    heavy = ("torch", "safetensors", "h5py", "spacy_elmo.weights", "spacy_elmo.lm.bilm", "spacy_elmo.pretraining")
    found = [module for module in imports(path, _at_import(tree_of(path))) if module.startswith(heavy)]
    assert [module for module in found if not module.startswith("spacy_elmo.weights.embedded")] == []


def _at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """The statements that run when a module is imported: none in functions, none for type checkers."""
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not is_for_types and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield node
            todo.extend(ast.iter_child_nodes(node))


@pytest.mark.parametrize(("catalogue", "letter"), [(Errors, "E"), (Warnings, "W")])
def test_catalogue_and_code_agree(catalogue: type, letter: str):
    known = {name for name in vars(catalogue) if re.fullmatch(rf"{letter}\d{{3}}", name)}
    used = set()
    for path in FILES:
        if path.name != "errors.py":
            used |= set(re.findall(rf"\b{catalogue.__name__}\.({letter}\d{{3}})\b", path.read_text(encoding="utf-8")))
    assert used - known == set(), "codes that the catalogue does not have"
    assert known - used == set(), "codes that no code uses"


def test_codes_are_unique():
    source = (PACKAGE / "errors.py").read_text(encoding="utf-8")
    codes = re.findall(r"^    ([EW]\d{3}) = ", source, flags=re.MULTILINE)
    assert len(codes) == len(set(codes))


def test_messages_begin_with_their_code():
    assert Errors.E001.startswith("[ELMO-E001] ")
