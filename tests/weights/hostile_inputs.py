"""Files of models, damaged by chance and by design. The same seed always gives the same files."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.softmax import AdaptiveSoftmax, FullSoftmax
from spacy_elmo.weights.native import save_bilm, save_head
from tests.weights import tf_writer
from tests.weights.hdf5_model import CONFIG, WORDS, WORDS_CONFIG, HDF5Model, bilm_tf_datasets, random_model
from tests.weights.many_langs_model import write_model

Files = dict[str, bytes]

NUMBERS = [0, 1, -1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 10**11]
VALUES: list[Any] = [
    *(None, True, False, "", "relu", "\ud800", "\x1b[31m", "../../x", [], {}, [[]], [{}], {"": {}}, [[1, 2], [3]]),
    *(0, -1, 1, 3, 262, 2**31, 2**62, 2**64, 10**30, 10**400, 0.5, 1e308, -0.0, float("nan"), float("inf")),
    *("x" * 10_000, [0] * 1000, [[1, 1]] * 1000, [[1, 2**16]], [[10**9, 1]], {str(i): i for i in range(1000)}),
]


# Any bytes.


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Cut, with flipped bits, with other bytes, with numbers at the limits, with parts repeated, removed or put in."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 20))):
        at = (
            chance.randrange(len(changed) + 1)
            if chance.random() < 0.6
            else chance.randrange(min(len(changed), 600) + 1)
        )
        kind, size = chance.randrange(8), chance.choice((1, 2, 4, 8, 100))
        if kind == 0:
            del changed[at:]
        elif kind == 1 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 2 and at < len(changed):
            changed[at] = chance.randrange(256)
        elif kind == 3:
            number = (chance.choice(NUMBERS) % 2**64).to_bytes(8, chance.choice(("little", "big")))
            changed[at : at + size] = (number * 13)[:size]
        elif kind == 4:
            changed[at:at] = changed[at : at + size]
        elif kind == 5:
            del changed[at : at + size]
        elif kind == 6:
            changed[at:at] = chance.randbytes(size)
        else:
            other = chance.randrange(len(changed) + 1)
            changed[at : at + size] = changed[other : other + size]
    return bytes(changed)


def damaged_json(data: bytes, chance: random.Random) -> bytes:
    """JSON in which some values are others, missing or new; sometimes no JSON any more."""
    if chance.random() < 0.2:
        return damaged(data, chance)
    if chance.random() < 0.05:
        return chance.choice((b"[" * 200_000, b'{"a":' * 100_000, b"\xff\xfe{\0}\0", b"1e400", b"9" * 10_000, b""))
    root = [json.loads(data)]
    for _ in range(chance.choice((1, 1, 2, 4))):
        places = list(_places(root))
        parent, key = chance.choice(places)
        kind = chance.randrange(5)
        if kind == 0 and parent is not root:
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            parent[chance.choice(("lstm", "bilm", "format", "x", "", "\x1b[2J", *map(str, parent)))] = parent[key]
        else:
            parent[key] = chance.choice(VALUES)
        root = json.loads(json.dumps(root))
    return json.dumps(root[0]).encode()


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


def damaged_any(name: str, data: bytes, chance: random.Random) -> bytes:
    if name.endswith(".json"):
        return damaged_json(data, chance)
    if name.endswith(".safetensors") and chance.random() < 0.5:
        length = 8 + int.from_bytes(data[:8], "little")
        header = damaged_json(data[8:length], chance)
        return len(header).to_bytes(8, "little") + header + data[length:]
    if name.endswith(".gz") and chance.random() < 0.5:
        bomb = chance.random() < 0.002
        return gzip.compress(b"\n" * 2**26 if bomb else damaged(gzip.decompress(data), chance), 1)
    return damaged(data, chance)


# Files of hdf5.


def hostile_hdf5(data: bytes, chance: random.Random) -> bytes:
    """A file in which one thing is what it should not be, though hdf5 finds nothing wrong."""
    buffer = io.BytesIO(data)
    with h5py.File(buffer, "a") as file:
        names: list[str] = []
        file.visititems(lambda name, found: names.append(name) if isinstance(found, h5py.Dataset) else None)
        name = chance.choice(names)
        values = file[name][...]
        change = chance.choice(_HDF5_CHANGES)
        del file[name]
        change(file, name, values, chance)
    return buffer.getvalue()


def _external_link(file: Any, name: str, values: Any, chance: random.Random) -> None:
    file[name] = h5py.ExternalLink(
        chance.choice(("/etc/passwd", "weights.hdf5", "../x.hdf5")), chance.choice(("/", name))
    )


def _soft_link(file: Any, name: str, values: Any, chance: random.Random) -> None:
    file[name] = h5py.SoftLink(chance.choice(("/nowhere", f"/{name}", "/", "/softmax")))


def _virtual(file: Any, name: str, values: Any, chance: random.Random) -> None:
    layout = h5py.VirtualLayout(values.shape, "f4")
    if values.ndim:
        layout[...] = h5py.VirtualSource(chance.choice((".", "/etc/passwd", "weights.hdf5")), "x", values.shape)
    file.create_virtual_dataset(name, layout)


def _kept_elsewhere(file: Any, name: str, values: Any, chance: random.Random) -> None:
    place = chance.choice(("/etc/passwd", "weights.hdf5", "/dev/zero"))
    file.create_dataset(name, values.shape, "f4", external=[(place, 0, h5py.h5f.UNLIMITED)])


def _never_written(file: Any, name: str, values: Any, chance: random.Random) -> None:
    shape = chance.choice((values.shape, (160_000, 160_000), (2**31,), (2**20, 2**20, 2**20), (2,) * 30))
    chunks = tuple(min(size, 2) for size in shape) or None
    file.create_dataset(name, shape, "f4", chunks=chunks, fillvalue=chance.choice((None, 1.0, np.nan)))


def _bomb(file: Any, name: str, values: Any, chance: random.Random) -> None:
    shape = chance.choice((values.shape, (2**12, 2**11)))
    compression = chance.choice(("gzip", "lzf", None))
    options = {"shuffle": chance.random() < 0.5, "fletcher32": chance.random() < 0.5}
    if not shape:
        file[name] = np.float32(0)
        return
    file.create_dataset(name, shape, "f4", np.zeros(shape, "f4"), chunks=shape, compression=compression, **options)


def _deep_bomb(file: Any, name: str, values: Any, chance: random.Random) -> None:
    """A chunk of the right shape that hdf5 would inflate far beyond it."""
    if not values.ndim:
        file[name] = values
        return
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(values.shape)
    data = values.tobytes() + b"\0" * 2 ** chance.choice((0, 0, 10, 10, 20, 25))
    for _ in range(chance.choice((1, 1, 2, 3))):
        properties.set_deflate(1)
        data = zlib.compress(data, 1)
    space = h5py.h5s.create_simple(values.shape)
    file.require_group(name.rpartition("/")[0] or "/")
    dataset = h5py.h5d.create(file.id, name.encode(), h5py.h5t.IEEE_F32LE, space, properties)
    data = (damaged(data, chance) if chance.random() < 0.3 else data) or b"\0"
    dataset.write_direct_chunk((0,) * values.ndim, data, chance.choice((0, 0, 0, 1)))


def _other_type(file: Any, name: str, values: Any, chance: random.Random) -> None:
    kinds = (
        "f8",
        "f2",
        ">f4",
        "i4",
        "u1",
        "?",
        "S3",
        "c8",
        "V4",
        h5py.string_dtype(),
        h5py.vlen_dtype("f4"),
        h5py.ref_dtype,
    )
    kind = chance.choice((*kinds, np.longdouble, [("a", "f4")], h5py.enum_dtype({"A": 1}), np.dtype(("f4", (2,)))))
    file.create_dataset(name, values.shape, kind)


def _other_shape(file: Any, name: str, values: Any, chance: random.Random) -> None:
    shapes = (
        values.shape[::-1],
        (*values.shape, 1),
        (values.size,),
        (),
        (0,),
        (*values.shape[:-1], 0),
        values.shape[1:],
    )
    file.create_dataset(name, chance.choice(shapes), "f4")


def _not_finite(file: Any, name: str, values: Any, chance: random.Random) -> None:
    values.reshape(-1)[chance.randrange(values.size) :][:1] = chance.choice((np.nan, np.inf, -np.inf))
    file[name] = values if chance.random() < 0.5 else values.astype("f8") * 1e300


def _no_dataset(file: Any, name: str, values: Any, chance: random.Random) -> None:
    kind = chance.randrange(4)
    if kind == 0:
        file.create_group(name)
    elif kind == 1:
        file[name] = np.dtype("f4")
    elif kind == 2:
        file[name] = h5py.Empty("f4")
    else:
        file[chance.choice((f"{name}/x/y", "RNN/x", "CNN/W_cnn_99", "\x1b[2J", "RNN_0/x"))] = values


def _hard_links(file: Any, name: str, values: Any, chance: random.Random) -> None:
    file[name] = values
    for place in ("loop", f"{name.rpartition('/')[0]}/loop", "CNN/loop"):
        if place not in file and "/" in place.strip("/"):
            file[place] = file["/"]
    file["again"] = file[name]


def _many(file: Any, name: str, values: Any, chance: random.Random) -> None:
    file[name] = values
    for i in range(chance.choice((10, 300))):
        file[chance.choice((f"x{i}", "/".join(["g"] * (i + 1)) + "/d", f"CNN/W_cnn_{i + 3}"))] = values
    file.attrs["a"] = np.zeros(1000)


_HDF5_CHANGES: list[Callable[[Any, str, Any, random.Random], None]] = [
    *(_external_link, _soft_link, _virtual, _kept_elsewhere, _never_written, _bomb, _deep_bomb, _other_type),
    *(_other_shape, _not_finite, _no_dataset, _hard_links, _many),
]


# Checkpoints, pickles, zip files.


def hostile_index(data: bytes, chance: random.Random) -> bytes:
    """An index of a checkpoint whose sums are right, with other entries in it."""
    entries = dict(_INDEX)
    for _ in range(chance.choice((1, 1, 3))):
        key = chance.choice(sorted(entries))
        kind = chance.randrange(4)
        if kind == 0:
            entries[key] = damaged(entries[key], chance)
        elif kind == 1:
            numbers = [abs(chance.choice(NUMBERS)) % 2**64 for _ in range(5)]
            shape = tuple(abs(chance.choice(NUMBERS)) % 2**64 for _ in range(chance.choice((0, 1, 2, 40))))
            entries[key] = tf_writer.entry(chance.choice((1, 2, 9, 19, numbers[0])), shape, *numbers[1:4], 7)
        elif kind == 2 and len(entries) > 1:
            del entries[key]
        else:
            entries[chance.choice((damaged(key, chance), b"lm/" + bytes([255]), key * 1000))] = entries[key]
    is_small = sum(map(len, entries)) < 10_000
    return tf_writer.table(entries, chance.choice((1, 5)), is_small and chance.random() < 0.5)


def hostile_torch_zip(data: bytes, chance: random.Random) -> bytes:
    """A file of torch.save whose zip is whole, with other contents."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        victim = chance.choice([name for name in old.namelist() if name.endswith(".pkl")] * 20 + old.namelist())
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, damaged(content, chance) if name == victim else content)
    return buffer.getvalue()


def hostile_zip(files: Files, chance: random.Random) -> bytes:
    """A zip file of a model with one thing that no honest one has."""
    buffer = io.BytesIO()
    kind = chance.randrange(8)
    outside = ("../x.json", "/tmp/x.json", "a/../../x.json", "..\\x.json", "C:\\x.json", "x\0.json", "/", "x" * 300)
    method = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in files.items():
            archive.writestr(name, content)
        if kind == 0:
            member = zipfile.ZipInfo("x")
            member.filename = chance.choice(outside)
            archive.writestr(member, b"{}")
        elif kind == 1:
            member = zipfile.ZipInfo(chance.choice(("vocab.txt", "x.json", "x")))
            member.external_attr = (chance.choice((stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO)) | 0o777) << 16
            archive.writestr(member, b"/etc/passwd")
        elif kind == 2:
            member = zipfile.ZipInfo(chance.choice(("OPTIONS.JSON", "Vocab.txt", "options.json/x", "options.json/")))
            archive.writestr(member, b"{}")
        elif kind == 3:
            archive.writestr("zeros.json", b"\0" * 2**25, zipfile.ZIP_DEFLATED)
        elif kind == 4:
            for i in range(chance.choice((10, 1100))):
                archive.writestr(f"{i}.json", b"")
    data = buffer.getvalue()
    if kind == 5:  # the directory's flags: encrypted; its method: another
        data = re.sub(
            rb"PK\x01\x02(....)..", lambda m: b"PK\x01\x02" + m[1] + b"\x01\x00", data, count=1, flags=re.DOTALL
        )
    elif kind == 6:  # sizes that are not so
        lie = struct.pack("<I", chance.choice((1, 2**31, 2**32 - 2)))
        data = re.sub(rb"PK\x01\x02(.{20})....", lambda m: b"PK\x01\x02" + m[1] + lie, data, count=1, flags=re.DOTALL)
    return damaged(data, chance) if kind == 7 else data


# Models.


def templates(folder: Path) -> dict[str, Files]:
    """RETURNS (dict): The files of small models, by the name of their kind."""
    torch.manual_seed(0)
    native = BiLMConfig(character_dim=3, filters=((1, 3), (2, 4)), max_characters=8, projection=4, cells=6, n_layers=1)
    found = {}
    for name, config, vocabularies, head in (
        ("native", native, {}, FullSoftmax(4, len(WORDS))),
        ("native-words", WORDS_CONFIG, {"words": WORDS}, AdaptiveSoftmax(5, len(WORDS), [3, 6], 2.0)),
    ):
        save_bilm(BiLM(config, vocabularies), folder / name)
        save_head(head, folder / name)
        (folder / name / "vocabulary.txt.gz").write_bytes(gzip.compress("\n".join(WORDS).encode(), mtime=0))
    for name, config in (("hdf5", CONFIG), ("hdf5-words", WORDS_CONFIG)):
        model = HDF5Model(folder / name, config)
        model.replace("softmax/W", np.ones((len(WORDS), config.projection), "f4"))
        model.replace("softmax/b", np.ones(len(WORDS), "f4"))
        (folder / name / "words.txt").unlink(missing_ok=True)
        (folder / name / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    variables = tf_writer.bilm_tf_variables(bilm_tf_datasets(CONFIG, random_model(CONFIG)))
    entries = tf_writer.write_bundle(folder / "tf" / "model.ckpt-7", variables)
    _INDEX.update(entries)
    (folder / "tf" / "options.json").write_bytes((folder / "hdf5" / "options.json").read_bytes())
    (folder / "tf" / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    for name in ("many-langs", "many-langs-zip"):
        write_model(folder / name, zipped=name == "many-langs-zip")
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.setdefault(path.parent.name, {})[path.name] = path.read_bytes()
    found["zip"] = found["hdf5"]
    return found


_INDEX: dict[bytes, bytes] = {}


def write_hostile(kind: str, files: Files, seed: int, folder: Path) -> Path:
    """Write one hostile model.

    kind (str), files (Files): From `templates`.
    seed (int): Which one.
    folder (Path): Where to; new.
    RETURNS (Path): The source: a directory or a zip file.
    """
    chance = random.Random(f"{kind} {seed}")
    folder.mkdir(parents=True)
    if kind == "zip":
        path = folder / "model.zip"
        path.write_bytes(hostile_zip(files, chance))
        return path
    victims = chance.sample(sorted(files), chance.choice((1, 1, 1, 2)))
    if kind.startswith("hdf5") and chance.random() < 0.6:
        victims = ["weights.hdf5"]
    for name, content in files.items():
        if name in victims:
            if chance.random() < 0.02:
                continue
            content = _hostile(name, content, chance)
        (folder / name).write_bytes(content)
    return folder


def _hostile(name: str, content: bytes, chance: random.Random) -> bytes:
    special = {".hdf5": hostile_hdf5, ".index": hostile_index}.get(Path(name).suffix)
    if content.startswith(b"PK") and name.endswith(".pkl"):
        special = hostile_torch_zip
    return special(content, chance) if special and chance.random() < 0.5 else damaged_any(name, content, chance)
