"""What lies in a directory or a file: which of the formats of ELMo models, and which file is what."""

from __future__ import annotations

import codecs
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import Errors, WeightsError, detail_of, one_line, shown
from .files import read_json
from .native import CONFIG_FILE, VOCABULARY_FILE, WEIGHTS_FILE
from .tf_checkpoint import latest_checkpoint

NATIVE, BILM_HDF5, TF_CHECKPOINT, MANY_LANGS = "native", "bilm-hdf5", "tf-checkpoint", "many-langs"

_HDF5_SUFFIXES = (".hdf5", ".h5")
_SHOWN = 20

# How files begin that are given in place of a model.
_MAGIC = {
    b"\x1f\x8b": "a gzip file, such as a tar.gz archive",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"SQLite format 3": "an SQLite file, such as one of Magnitude",
    b"\x80\x02": "a pickle, such as an old PyTorch file",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
    b"\x93NUMPY": "an array of NumPy",
}
_ARCHIVE_HINT = (
    " Unpack it and pass the directory with its options.json and hdf5 file. The model.tar.gz of AllenNLP's transformer ELMo "
    "is another model and cannot be read."
)


@dataclass(frozen=True)
class LocalFiles:
    """The files of a model.

    format (str): "native", "bilm-hdf5", "tf-checkpoint" or "many-langs".
    paths (dict[str, Path]): By role: "directory"; or "options" with "weights" or "prefix" (of a TensorFlow checkpoint),
        "softmax" and "vocabulary".
    facts (dict[str, Any]): What is known of it: "source", "about", "language", "licence", "urls", "sha256".
    notes (list[str]): Sentences on what was chosen or passed over.
    """

    format: str
    paths: dict[str, Path]
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_in_directory(directory: Path) -> LocalFiles:
    """Tell what model a directory holds.

    directory (Path): The directory.
    RETURNS (LocalFiles): Its files.
    RAISES (WeightsError): E120 if it cannot be listed, E171 if it holds none, E173 if it holds several, E174 if it holds a
        part of one, E175, E176 if it holds another kind of model.
    """
    names = _visible_names(directory)
    meta = _read_object(directory / "meta.json")
    _refuse_other_algorithms(directory / "meta.json", meta, names)
    for look in _LOOKS:
        found = look(directory, names)
        if found is not None:
            found.facts.update(_nlpl_facts(meta))
            return found
    if CONFIG_FILE in names:
        _refuse_allennlp(directory / CONFIG_FILE)
    raise WeightsError(Errors.E171.format(path=directory, there=_shown(names)))


def find_beside(path: Path) -> LocalFiles:
    """Tell what model a file belongs to; its other files are looked for beside it.

    path (Path): An options.json, an hdf5 file, a file of a TensorFlow checkpoint or its prefix, a file of a native
        directory.
    RETURNS (LocalFiles): The files.
    RAISES (WeightsError): E120 if the file cannot be read, E172 if it is of another kind, else as `find_in_directory`.
    """
    directory = path.parent
    if _is_prefix(path):
        return _checkpoint(directory, _visible_names(directory), path)
    if match := re.fullmatch(r"(.+)\.(index|meta|data-\d{5}-of-\d{5})", path.name):
        return _checkpoint(directory, _visible_names(directory), path.with_name(match[1]))
    if path.name in (CONFIG_FILE, WEIGHTS_FILE) and _native(directory, _visible_names(directory)):
        return LocalFiles(NATIVE, {"directory": directory})
    start = _first_bytes(path)
    if start.startswith(b"\x89HDF"):
        return pair(_options_for(path), path)
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        _refuse_allennlp(path)
        return pair(path, _weights_for(path))
    kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)
    hint = _ARCHIVE_HINT if kind is not None and start[:2] in (b"\x1f\x8b", b"BZ", b"\xfd7", b"7z") else ""
    raise WeightsError(Errors.E172.format(path=path, kind=kind or _kind_of_text(start), hint=hint))


def pair(options: Path, weights: Path) -> LocalFiles:
    """The two files of a model of bilm-tf or AllenNLP, and what stands beside the weights.

    options (Path): The options.json. weights (Path): The hdf5 file, or the prefix of a TensorFlow checkpoint.
    RETURNS (LocalFiles): The files.
    """
    if options.suffix.lower() in _HDF5_SUFFIXES and weights.suffix.lower() == ".json":
        options, weights = weights, options
    if not weights.is_file() and _is_prefix(weights):
        return LocalFiles(TF_CHECKPOINT, {"options": options, "prefix": weights})
    names = _visible_names(weights.parent)
    notes: list[str] = []
    paths = {"options": options, "weights": weights, **_companions(weights.parent, names, notes)}
    return LocalFiles(BILM_HDF5, paths, notes=notes)


def is_zip(path: Path) -> bool:
    """RETURNS (bool): Whether a file is a zip file, whatever its name.

    RAISES (WeightsError): E120 if it cannot be read.
    """
    return _first_bytes(path).startswith((b"PK\x03\x04", b"PK\x05\x06"))


def is_pytorch_file(names: list[str]) -> bool:
    """RETURNS (bool): Whether a zip file with these members is what torch.save writes."""
    return any(name.rsplit("/", 1)[-1] == "data.pkl" for name in names)


def _native(directory: Path, names: list[str]) -> LocalFiles | None:
    has_config = CONFIG_FILE in names and "bilm" in _read_object(directory / CONFIG_FILE)
    return LocalFiles(NATIVE, {"directory": directory}) if WEIGHTS_FILE in names or has_config else None


def _many_langs(directory: Path, names: list[str]) -> LocalFiles | None:
    is_there = {"encoder.pkl", "token_embedder.pkl"} & set(names)
    return LocalFiles(MANY_LANGS, {"directory": directory}) if is_there else None


def _bilm_hdf5(directory: Path, names: list[str]) -> LocalFiles | None:
    hdf5 = [name for name in names if name.lower().endswith(_HDF5_SUFFIXES)]
    indexes = [name for name in names if name.endswith(".index")]
    if not hdf5:
        return None
    options = _options_in(directory, names)
    notes: list[str] = []
    paths = {
        "options": options,
        "weights": directory / _choose_weights(directory, hdf5),
        **_companions(directory, names, notes),
    }
    if indexes:
        paths["prefix"] = latest_checkpoint(directory)
    return LocalFiles(BILM_HDF5, paths, notes=notes)


def _tf_checkpoint(directory: Path, names: list[str]) -> LocalFiles | None:
    if not any(name.endswith(".index") for name in names):
        if any(name == "options.json" for name in names):
            advice = "Pass the directory that holds the weights, too, or the pair 'options.json::weights.hdf5'."
            raise WeightsError(Errors.E174.format(path=directory, role="weights", there=_shown(names), advice=advice))
        return None
    return _checkpoint(directory, names, latest_checkpoint(directory))


# In this order: a directory of bilm-tf may hold an exported hdf5 file beside its checkpoints.
_LOOKS = (_native, _many_langs, _bilm_hdf5, _tf_checkpoint)


def _refuse_other_algorithms(path: Path, meta: dict[str, Any], names: list[str]) -> None:
    """Raise E176 for a model of the NLPL repository that is none of ELMo. Some of those have files that look alike."""
    said = json.dumps(meta).lower()
    algorithm = meta.get("algorithm")
    is_elmo = "elmo" in said or "embeddings from language models" in said
    if algorithm and not is_elmo and "options.json" not in names:
        name = algorithm.get("name") if isinstance(algorithm, dict) else algorithm
        raise WeightsError(Errors.E176.format(path=path, algorithm=shown(name)))


def _checkpoint(directory: Path, names: list[str], prefix: Path) -> LocalFiles:
    notes: list[str] = []
    paths = {"options": _options_in(directory, names), "prefix": prefix, **_companions(directory, names, notes)}
    paths.pop("softmax", None)
    if sum(name.endswith(".index") for name in names) > 1:
        notes.append(f"Of several checkpoints, {prefix.name} was taken.")
    return LocalFiles(TF_CHECKPOINT, paths, notes=notes)


def _options_in(directory: Path, names: list[str]) -> Path:
    named = [name for name in names if name.lower().endswith(".json") and "options" in name.lower()]
    if "options.json" in named or len(named) == 1:
        return directory / ("options.json" if "options.json" in named else named[0])
    if named:
        raise WeightsError(Errors.E173.format(path=directory, role="options", names=", ".join(named)))
    advice = "It belongs to the weights and says what they are; its makers give it along with them."
    raise WeightsError(Errors.E174.format(path=directory, role="options.json", there=_shown(names), advice=advice))


def _choose_weights(directory: Path, hdf5: list[str]) -> str:
    """The file of the NLPL repository, else the only one that is called weights, else the only one."""
    if "model.hdf5" in hdf5:
        return "model.hdf5"
    others = [name for name in hdf5 if "softmax" not in name.lower()]
    called = [name for name in others if "weights" in name.lower()] or others
    if len(called) != 1:
        raise WeightsError(Errors.E173.format(path=directory, role="weights", names=", ".join(called or hdf5)))
    return called[0]


def _options_for(weights: Path) -> Path:
    """options.json beside an hdf5 file: of the same name first, as AI2 names them."""
    names = _visible_names(weights.parent)
    alike = re.sub("weights", "options", weights.stem) + ".json"
    if alike in names and alike != f"{weights.stem}.json":
        return weights.with_name(alike)
    return _options_in(weights.parent, names)


def _weights_for(options: Path) -> Path:
    names = _visible_names(options.parent)
    stem = re.sub("options", "weights", options.stem)
    alike = [f"{stem}{suffix}" for suffix in _HDF5_SUFFIXES if f"{stem}{suffix}" in names]
    if alike:
        return options.with_name(alike[0])
    hdf5 = [name for name in names if name.lower().endswith(_HDF5_SUFFIXES)]
    if hdf5:
        return options.with_name(_choose_weights(options.parent, hdf5))
    if any(name.endswith(".index") for name in names):
        return latest_checkpoint(options.parent)
    advice = "Pass both files as 'options.json::weights.hdf5'."
    raise WeightsError(Errors.E174.format(path=options.parent, role="weights", there=_shown(names), advice=advice))


def _companions(directory: Path, names: list[str], notes: list[str]) -> dict[str, Path]:
    """Softmax and vocabulary, where it is clear which they are."""
    found = {}
    softmax = [name for name in names if "softmax" in name.lower() and name.lower().endswith(_HDF5_SUFFIXES)]
    if len(softmax) == 1:
        found["softmax"] = directory / softmax[0]
    vocabularies = [name for name in names if re.fullmatch(r"vocab[\w.-]*\.txt(\.gz)?", name.lower())]
    usual = [name for name in ("vocab.txt", "vocab.txt.gz", "vocabulary.txt", VOCABULARY_FILE) if name in vocabularies]
    if usual or len(vocabularies) == 1:
        found["vocabulary"] = directory / (usual or vocabularies)[0]
    elif vocabularies:
        notes.append(f"Several files could be the vocabulary ({', '.join(vocabularies)}); none was taken.")
    return found


def _nlpl_facts(meta: dict[str, Any]) -> dict[str, Any]:
    """Of the meta.json of the NLPL repository."""
    facts = {}
    corpora = meta.get("corpus")
    corpus = corpora[0] if isinstance(corpora, list) and corpora else corpora
    if isinstance(corpus, dict):
        if isinstance(corpus.get("language"), str):
            facts["language"] = one_line(corpus["language"])
        if isinstance(corpus.get("description"), str):
            facts["about"] = f"NLPL repository: {one_line(corpus['description'])}"
    return facts


def _refuse_allennlp(path: Path) -> None:
    """Raise E175 for a configuration of AllenNLP's language models, the transformer ELMo among them."""
    settings = _read_object(path)
    text = json.dumps(settings).lower().replace("-", "_")
    if "lstm" in settings or "language_model" not in text:
        return
    what = "a language model of AllenNLP"
    if "bidirectional_language_model" in text:
        what = "AllenNLP's transformer ELMo (a bidirectional_language_model)"
    raise WeightsError(Errors.E175.format(path=path, what=what))


def _is_prefix(path: Path) -> bool:
    # Unlike Path.is_file this is False, too, where the name is too long.
    return os.path.isfile(path.with_name(f"{path.name}.index")) if path.name else False


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object, empty if the file holds none: it is only looked at here, and read for good elsewhere."""
    try:
        found = read_json(path)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _visible_names(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise WeightsError(Errors.E120.format(path=directory, problem=detail_of(error))) from error


def _first_bytes(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(512)
    except OSError as error:
        raise WeightsError(Errors.E120.format(path=path, problem=detail_of(error))) from error


def _kind_of_text(start: bytes) -> str:
    if not start:
        return "an empty file"
    try:
        # The last character may be cut.
        text = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        text = "\0"
    return "a file of an unknown kind" if "\0" in text else "a text file"


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) + more) or "nothing"
