"""`python -m spacy elmo info`: what a model is, what was assumed of it, what was learned on it, and where it would run."""

from __future__ import annotations

import glob
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from . import elmo_cli
from .messages import errors_as_messages
from .models import SOURCE_HELP, load_noting
from .pipelines import elmo_pipe, saved_pipeline

if TYPE_CHECKING:
    from ..lm.bilm import BiLM
    from ..lm.config import BiLMConfig
    from ..weights.local_files import LocalFiles
    from ..weights.source import Source

_WIDTH = 100


@elmo_cli.command("info")
def info_cli(
    source: str = typer.Argument(
        None, help=f"{SOURCE_HELP} Or a saved pipeline. Default: the model that comes with spacy-elmo."
    ),
    offline: bool = typer.Option(False, "--offline", help="Download nothing."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Show the architecture, size, origin and files of a model, what was assumed of it and what was ignored, the mixes of
    layers that the components of a pipeline have learned, and the device that pipelines use, and why."""
    import srsly

    with errors_as_messages():
        found = describe_pipeline(source) if _is_pipeline(source) else describe(source, offline)
    if as_json:
        print(srsly.json_dumps(found, indent=2))
        return
    _print(found)


def _print(found: dict[str, Any]) -> None:
    from wasabi.printer import Printer

    is_terminal = sys.stdout.isatty()
    printer = Printer(line_max=_WIDTH, pretty=is_terminal)
    for title, facts in found.items():
        if is_terminal:
            printer.divider(title)
        else:  # where it is not pretty, wasabi prints a title like any other line
            print("\n" + f" {title} ".center(_WIDTH, "="))
        if isinstance(facts, dict):
            printer.table({name: str(value) for name, value in facts.items()})
        else:
            for line in facts:
                printer.text(f"- {line}")


def describe(source: Source | None = None, offline: bool = False) -> dict[str, Any]:
    """Read weights and say what they are.

    source (str | Path | Sequence | None): As for `load_model`; None for the embedded model.
    offline (bool): Download nothing.
    RETURNS (dict): Titles and their facts, in JSON's types.
    RAISES (WeightsError): E1xx if the weights are missing or broken.
    """
    from ..weights.embedded import EMBEDDED_MODEL
    from ..weights.source import locate

    files = locate(EMBEDDED_MODEL if source is None else source, offline=offline)
    model = load_noting(files)
    facts = {name: value for name, value in model.facts.items() if name != "card"}
    weights = {**facts, **_card(files), **_stored(files), **_identity(model.bilm), "vocabulary": _count_words(files)}
    return {
        "Weights": weights,
        "Architecture": _architecture(model.bilm.config),
        **({"Assumed and ignored": model.notes} if model.notes else {}),
        "Device": _device(),
        "Versions": _versions(),
    }


def describe_pipeline(model: str | Path) -> dict[str, Any]:
    """Load a pipeline and say what biLMs it has, and how its components mix their layers.

    model (str | Path): Directory of a saved pipeline.
    RETURNS (dict): Titles and their facts, in JSON's types.
    RAISES (PipelineError): E407 if it has no elmo pipe, E413 if it cannot be loaded.
    """
    from ..pipeline.component import Elmo
    from ..pipeline.mixes import layer_mixes

    nlp = saved_pipeline(str(model))
    elmo_pipe(nlp)
    found: dict[str, Any] = {"Pipeline": {"language": nlp.lang, "components": nlp.component_names}}
    for name, pipe in nlp.components:
        if isinstance(pipe, Elmo):
            listening = pipe.listening_components
            frozen = {"frozen": pipe.is_frozen, "listening": listening}
            found[f"Weights of {name}"] = {**_identity(pipe.bilm), **frozen, **_architecture(pipe.bilm.config)}
    mixes = {
        mix.title: {"layers": [round(share, 4) for share in mix.shares], "gamma": round(mix.gamma, 4)}
        for mix in layer_mixes(nlp)
    }
    return {**found, **({"Mixes of layers": mixes} if mixes else {}), "Device": _device(), "Versions": _versions()}


def _is_pipeline(source: str | None) -> bool:
    from ..weights.source import is_pipeline

    return source is not None and is_pipeline(Path(source))


def _identity(bilm: BiLM) -> dict[str, Any]:
    from ..weights.fingerprint import fingerprint

    return {"parameters": sum(parameter.numel() for parameter in bilm.parameters()), "fingerprint": fingerprint(bilm)}


def _architecture(config: BiLMConfig) -> dict[str, Any]:
    return {"width": config.width, "layers": config.n_outputs, **config.to_dict()}


def _card(files: LocalFiles) -> dict[str, str]:
    """Where the model card of a directory is, which has the licence."""
    from ..weights.native import CARD_FILE

    # The README.md beside a file or a pair can be of anything.
    card = files.paths.get("directory", Path(os.path.expanduser(files.facts["source"]))) / CARD_FILE
    return {"model card": str(card)} if os.path.isfile(card) else {}


def _stored(files: LocalFiles) -> dict[str, Any]:
    """The files and, of a native directory, how and with what checksum the weights are stored."""
    from ..weights.files import sha256_of
    from ..weights.native import WEIGHTS_FILE

    directory = files.paths.get("directory")
    if directory is None:
        paths = [path for path in files.paths.values() if path.is_file()]
        if (prefix := files.paths.get("prefix")) is not None:
            paths += sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.*"))
        return {"files": {path.name: path.stat().st_size for path in paths}}
    found: dict[str, Any] = {
        "files": {path.name: path.stat().st_size for path in sorted(directory.iterdir()) if path.is_file()}
    }
    weights = directory / WEIGHTS_FILE
    if weights.is_file():
        found = {"stored as": _stored_dtypes(weights), "sha256": sha256_of(weights), **found}
    return found


def _stored_dtypes(path: Path) -> str:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if not name.startswith("vocabulary.")]
        return ", ".join(sorted({file.get_slice(name).get_dtype() for name in names}))


def _count_words(files: LocalFiles) -> int | None:
    from ..weights.bilm_vocabulary import read_words
    from ..weights.formats import vocabulary_path

    path = vocabulary_path(files)
    return None if path is None else len(read_words(path))


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
