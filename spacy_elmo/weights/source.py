"""From what a user calls a model to its files on this machine, local first.

A source is

    my_elmo/                            a directory, in any of the formats that are read
    my_elmo.zip                         a zip file of one
    options.json::weights.hdf5          the two files of a model of bilm-tf or AllenNLP, as one string or as a list
    options.json                        one of them, the other beside it
    checkpoints/model.ckpt-1000         a TensorFlow checkpoint of bilm-tf
    en_elmo_sm                          the model that comes with spacy-elmo
    ai2-original, nlpl:209              a short name, see `known_models`
    https://host/model.zip              the address of a zip file, or two addresses as a pair

An address may end in `#sha256=<64 hex digits>`: then the file must have that checksum.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import Errors, WeightsError, detail_of, one_line, shown
from .archives import member_names, unpack
from .downloads import cache_directory, download, receipt, url_key
from .embedded import EMBEDDED_MODELS
from .known_models import KnownModel, find_known_model, known_names
from .local_files import (
    BILM_HDF5,
    TF_CHECKPOINT,
    LocalFiles,
    find_beside,
    find_in_directory,
    is_pytorch_file,
    is_zip,
    pair,
)
from .native import CONFIG_FILE, WEIGHTS_FILE

Source = str | Path | Sequence[str | Path]

PAIR = "::"
# Not within an address of the sixth version of the internet protocol, http://[::1]/.
_PAIR = re.compile(PAIR + r"(?![0-9A-Fa-f:.]*(?:%\w+)?\])")
# What only the output head needs; it can be far larger than the rest.
_OF_THE_HEAD = ("softmax", "vocabulary")


def locate(source: Source, *, with_softmax: bool = False, offline: bool = False) -> LocalFiles:
    """Find the files of a model, and fetch those that are not here. What is here touches no network.

    source (str | Path | Sequence): See above.
    with_softmax (bool): Fetch the output head and its vocabulary, too, where they are files of their own.
    offline (bool): Fetch nothing; SPACY_ELMO_OFFLINE asks for the same.
    RETURNS (LocalFiles): The files, their format, and what is known of them.
    RAISES (WeightsError): E120 if a file cannot be read, E160–E165 if one cannot be fetched, E166, E167 for a zip file that
        is damaged or hostile, E170 for a source that is none, E171–E177 if it holds no model, or one that is not read,
        E481 if it is a saved spaCy pipeline.
    """
    parts = _parts(source)
    if len(parts) == 2:
        options, weights = (_local_file(part, offline) for part in parts)
        found = pair(options, weights)
        facts = _facts_of_downloads([options, weights])
    elif _is_here(parts[0]):
        found, facts = _look_into(_path(parts[0])), {}
    elif parts[0] in EMBEDDED_MODELS:
        found, facts = _look_into(EMBEDDED_MODELS[parts[0]]), {}
    elif (model := find_known_model(parts[0])) is not None:
        found, facts = _fetch_known(model, with_softmax, offline)
    elif _is_address(parts[0]):
        file = _local_file(parts[0], offline)
        found, facts = _look_into(file), _facts_of_downloads([file])
    else:
        raise WeightsError(_no_such_source(parts[0]))
    found.facts.update(facts)
    found.facts["source"] = PAIR.join(parts)
    return found


def _parts(source: Source) -> list[str]:
    if isinstance(source, (str, Path)):
        text = str(source)
        if isinstance(source, Path):
            # A Path swallows one of the two slashes of an address.
            text = re.sub(r"^(https?):/(?=[^/])", r"\1://", text)
        parts = [text] if _is_here(text) else _PAIR.split(text)
    elif isinstance(source, (list, tuple)):
        parts = [str(part) for part in source]
    else:
        raise WeightsError(_no_such_source(str(source)))
    if len(parts) not in (1, 2) or not all(parts):
        raise WeightsError(Errors.E177.format(source=shown(str(source)), count=len(parts)))
    return parts


def _is_here(text: str) -> bool:
    if "\0" in text:
        return False
    path = os.path.expanduser(text)
    # The prefix of a TensorFlow checkpoint is no file itself.
    return os.path.exists(path) or os.path.isfile(f"{path}.index")


def _path(text: str) -> Path:
    try:
        path = Path(os.path.expanduser(text))
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return path  # the prefix of a TensorFlow checkpoint is no file itself; what else is missing is found out later
    except (OSError, ValueError) as error:
        raise WeightsError(Errors.E120.format(path=one_line(text), problem=detail_of(error))) from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise WeightsError(Errors.E172.format(path=path, kind="no plain file", hint=""))
    return path


def _is_address(text: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def _local_file(text: str, offline: bool) -> Path:
    """A file of a pair, or a zip file: a path, or an address that is fetched."""
    if _is_here(text) or not _is_address(text):
        return _path(text)
    url, _, fragment = text.partition("#")
    match = re.fullmatch(r"sha256=([0-9A-Fa-f]{64})", fragment)
    if fragment and match is None:
        raise WeightsError(Errors.E161.format(url=text, problem="what follows '#' is not sha256= and 64 hex digits"))
    return download(url, sha256=match[1] if match else None, offline=offline)


def is_pipeline(path: Path) -> bool:
    """RETURNS (bool): Whether this is the directory of a saved spaCy pipeline."""
    # Unlike Path.is_file this is False, too, where the name is too long.
    return all(os.path.isfile(path / name) for name in ("config.cfg", "meta.json"))


def _look_into(path: Path) -> LocalFiles:
    if path.is_dir():
        try:
            return find_in_directory(path)
        except WeightsError:
            if not is_pipeline(path):
                raise
            raise WeightsError(_no_weights_but_pipeline(path)) from None
    if not path.is_file() or not is_zip(path):
        return find_beside(path)
    status = path.stat()
    return _look_into_zip(path, url_key(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"))


def _look_into_zip(path: Path, key: str) -> LocalFiles:
    """Unpack a zip file into the cache, once."""
    target = cache_directory() / "unpacked" / key
    if not target.is_dir():
        if is_pytorch_file(member_names(path)):
            kind = "a file of PyTorch (weights in a pickle)"
            raise WeightsError(Errors.E172.format(path=path, kind=kind, hint=""))
        unpack(path, target)
    return find_in_directory(target)


def _fetch_known(model: KnownModel, with_softmax: bool, offline: bool) -> tuple[LocalFiles, dict[str, Any]]:
    key = model.name.replace(":", "-")
    directory = cache_directory() / "models" / key
    paths = {}
    for file in model.files:
        if with_softmax or file.role not in _OF_THE_HEAD:
            paths[file.role] = download(
                file.urls,
                directory=directory,
                name=file.name,
                sha256=file.sha256,
                size=file.size,
                offline=offline,
            )
    facts = {"name": model.name, "about": model.about, "language": model.language, "licence": model.licence}
    facts |= _facts_of_downloads(list(paths.values()))
    if "archive" in paths:
        found = _look_into_zip(paths["archive"], key)
    elif "checkpoint" in paths:
        prefix = re.sub(r"\.(index|data-\d+-of-\d+)$", "", paths.pop("checkpoint").name)
        found = LocalFiles(TF_CHECKPOINT, {**paths, "prefix": directory / prefix})
    else:
        found = LocalFiles(BILM_HDF5, paths)
    return found, {name: value for name, value in facts.items() if value is not None}


def _facts_of_downloads(paths: list[Path]) -> dict[str, Any]:
    receipts = {path.name: receipt(path) for path in paths}
    urls = [known["url"] for known in receipts.values() if "url" in known]
    sums = {name: known["sha256"] for name, known in receipts.items() if "sha256" in known}
    return {**({"urls": urls} if urls else {}), **({"sha256": sums} if sums else {})}


def _no_weights_but_pipeline(path: Path) -> str:
    """Name the weights that the elmo pipe of a pipeline has written below it."""
    inside = [config.parent for config in sorted(path.glob(f"*/bilm/{CONFIG_FILE}"))]
    whole = [one_line(str(weights)) for weights in inside if (weights / WEIGHTS_FILE).is_file()]
    advice = f" Pass the weights of its elmo pipe: {', or '.join(whole)}" if whole else ""
    return Errors.E481.format(path=path, advice=advice)


def _no_such_source(text: str) -> str:
    names = [*EMBEDDED_MODELS, *known_names()]
    near = difflib.get_close_matches(text.lower(), names, n=1)
    close = f" (did you mean {near[0]!r}?)" if near else ""
    shortest = [name for name in names if ":" not in name]
    return Errors.E170.format(
        source=shown(text), close=close, names=", ".join([*shortest, "nlpl:<number>", "many-langs:<language>"])
    )
