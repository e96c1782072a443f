"""Stand-ins for packages that AllenNLP imports when it loads, but that its ELMo never calls.

They let `allennlp.modules.elmo` be imported without dozens of packages of its time. None of them is on the way from words to
vectors: what is timed is AllenNLP's own code on numpy and torch.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

STUBBED = frozenset(
    {"_jsonnet", "boto3", "botocore", "fairscale", "google", "lmdb", "spacy", "torchvision", "transformers"}
)


class _StubClass(type):
    """A class that has every attribute, each a class of the same kind: enough for annotations and base classes."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StubClass(name, (), {})


class _StubModule(types.ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        stub = _StubClass(name, (), {})
        setattr(self, name, stub)
        return stub


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in STUBBED:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """Let the imports of `STUBBED` find stand-ins, whether or not the real packages are there."""
    sys.meta_path.insert(0, _StubFinder())
