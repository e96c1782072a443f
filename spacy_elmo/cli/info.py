"""`python -m spacy elmo info`: what a weights directory holds, and where it would run."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from . import elmo_cli
from .messages import errors_as_messages

if TYPE_CHECKING:
    from ..lm.config import BiLMConfig


@elmo_cli.command("info")
def info_cli(
    source: Path = typer.Argument(None, help="Weights directory. Default: the model that comes with spacy-elmo."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Show the architecture, size, files and checksum of weights, and the device that pipelines use, and why."""
    import srsly
    from wasabi.printer import Printer

    with errors_as_messages():
        found = describe(source)
    if as_json:
        print(srsly.json_dumps(found, indent=2))
        return
    for title, facts in found.items():
        printer = Printer(line_max=100)
        printer.divider(title)
        printer.table({name: str(value) for name, value in facts.items()})


def describe(source: Path | None = None) -> dict[str, dict[str, Any]]:
    """Read weights and say what they are.

    source (Path | None): A native weights directory; None for the embedded model.
    RETURNS (dict): Titles and their facts, in JSON's types.
    RAISES (WeightsError): E1xx if the weights are missing or broken.
    """
    from ..layers.shim import EMBEDDED_MODEL
    from ..weights.native import VOCABULARY_FILE, WEIGHTS_FILE, load_bilm

    directory = EMBEDDED_MODEL if source is None else source
    bilm = load_bilm(directory)
    vocabulary = directory / VOCABULARY_FILE
    weights = {
        "directory": str(directory),
        "parameters": sum(parameter.numel() for parameter in bilm.parameters()),
        "stored as": _stored_dtypes(directory / WEIGHTS_FILE),
        "sha256": _sha256(directory / WEIGHTS_FILE),
        "vocabulary": _count_words(vocabulary) if vocabulary.is_file() else None,
        "files": {path.name: path.stat().st_size for path in sorted(directory.iterdir()) if path.is_file()},
    }
    return {
        "Weights": weights,
        "Architecture": _architecture(bilm.config),
        "Device": _device(),
        "Versions": _versions(),
    }


def _architecture(config: BiLMConfig) -> dict[str, Any]:
    return {"width": config.width, "layers": config.n_outputs, **config.to_dict()}


def _stored_dtypes(path: Path) -> str:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return ", ".join(sorted({file.get_slice(name).get_dtype() for name in file.keys()}))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _count_words(path: Path) -> int:
    from ..pretraining.corpus import read_lines

    return sum(1 for _ in read_lines(path))


def _device() -> dict[str, str]:
    import torch
    from thinc.util import get_torch_default_device, gpu_is_available

    if gpu_is_available():
        reason = "spaCy can use a GPU, and does so after spacy.prefer_gpu() or with --gpu-id 0"
    elif torch.cuda.is_available():
        reason = "torch sees a GPU, but spaCy cannot use it without CuPy; pretraining can, with --gpu-id 0"
    else:
        reason = "torch sees no GPU"
    return {"device": str(get_torch_default_device()), "reason": reason, "threads": str(torch.get_num_threads())}


def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import version

    from .. import __version__

    names = ("spacy", "thinc", "torch", "numpy", "safetensors")
    return {"spacy-elmo": __version__, **{name: version(name) for name in names}, "python": platform.python_version()}
