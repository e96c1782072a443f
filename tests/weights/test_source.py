"""From what a user calls a model to its files: local first, and what is no model is told apart."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pickle
import re
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from spacy_elmo.errors import WeightsError
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.weights import source as source_module
from spacy_elmo.weights.known_models import KnownModel, RemoteFile
from spacy_elmo.weights.local_files import LocalFiles
from spacy_elmo.weights.native import save_bilm
from spacy_elmo.weights.source import _parts, locate
from tests.weights.web_server import WebServer

TINY = BiLMConfig(character_dim=2, filters=((1, 2),), max_characters=5, n_highway=0, projection=2, cells=3, n_layers=1)
HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(50)
OPTIONS = b'{"lstm": {}, "char_cnn": {}}'


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def fill(directory: Path, *names: str, **contents: bytes) -> Path:
    """A directory of files; hdf5 and JSON files look like what they are."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        content = HDF5 if name.endswith((".hdf5", ".h5")) else OPTIONS if name.endswith(".json") else b"x\n"
        (directory / name).write_bytes(content)
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    return directory


def zipped(path: Path, directory: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(directory.iterdir()):
            archive.write(file, file.name)
    return path


def names(found: LocalFiles) -> dict[str, str]:
    return {role: path.name for role, path in found.paths.items()}


# Directories


def test_native_directory(tmp_path: Path, no_network: None) -> None:
    save_bilm(BiLM(TINY), tmp_path / "m")
    found = locate(tmp_path / "m")
    assert (found.format, found.paths) == ("native", {"directory": tmp_path / "m"})
    assert found.facts["source"] == str(tmp_path / "m")
    assert locate(str(tmp_path / "m" / "model.safetensors")).paths == found.paths
    assert locate(tmp_path / "m" / "config.json").paths == found.paths


def test_native_directory_without_its_weights_is_told_by_its_reader(tmp_path: Path) -> None:
    save_bilm(BiLM(TINY), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert locate(tmp_path).format == "native"


@pytest.mark.parametrize("weights", ["weights.hdf5", "model.hdf5", "lm_weights.hdf5", "anything.h5"])
def test_pair_in_a_directory(tmp_path: Path, no_network: None, weights: str) -> None:
    found = locate(fill(tmp_path / "m", "options.json", weights, "notes.md"))
    assert found.format == "bilm-hdf5" and names(found) == {"options": "options.json", "weights": weights}


def test_directory_as_ai2_names_its_files(tmp_path: Path) -> None:
    files = ["elmo_x_options.json", "elmo_x_weights.hdf5", "elmo_x_softmax_weights.hdf5", "vocab-2016-09-10.txt"]
    roles = ["options", "weights", "softmax", "vocabulary"]
    assert names(locate(fill(tmp_path, *files))) == dict(zip(roles, files))


def test_directory_of_allennlps_fixture(fixtures_dir: Path, no_network: None) -> None:
    found = locate(fixtures_dir / "allennlp" / "elmo")
    assert (names(found)["options"], names(found)["weights"]) == ("options.json", "lm_weights.hdf5")


def test_export_comes_before_checkpoints(tmp_path: Path) -> None:
    """NLPL's model 212 has both."""
    files = ("options.json", "model.hdf5", "model.ckpt.index", "model.ckpt.data-00000-of-00001", "meta.json")
    found = locate(fill(tmp_path, *files))
    assert found.format == "bilm-hdf5" and names(found)["prefix"] == "model.ckpt"


def test_checkpoint_in_a_directory(tmp_path: Path) -> None:
    files = [f"model.ckpt-{step}.{part}" for step in (9, 100) for part in ("index", "data-00000-of-00001", "meta")]
    found = locate(fill(tmp_path, "options.json", "vocab.txt", *files))
    assert found.format == "tf-checkpoint"
    assert names(found) == {"options": "options.json", "prefix": "model.ckpt-100", "vocabulary": "vocab.txt"}
    assert "model.ckpt-100 was taken" in found.notes[0]


@pytest.mark.parametrize("end", ["", ".index", ".meta", ".data-00000-of-00001"])
def test_checkpoint_by_its_prefix_or_a_file_of_it(tmp_path: Path, no_network: None, end: str) -> None:
    files = [f"model.ckpt-{step}.{part}" for step in (9, 100) for part in ("index", "data-00000-of-00001", "meta")]
    fill(tmp_path, "options.json", *files)
    found = locate(tmp_path / f"model.ckpt-9{end}")
    assert (found.format, names(found)["prefix"]) == ("tf-checkpoint", "model.ckpt-9")


def test_many_langs_directory(tmp_path: Path, no_network: None) -> None:
    found = locate(fill(tmp_path, "config.json", "encoder.pkl", "token_embedder.pkl", "char.dic", "word.dic"))
    assert (found.format, found.paths) == ("many-langs", {"directory": tmp_path})


def test_many_langs_of_the_nlpl_repository(tmp_path: Path) -> None:
    meta = {"algorithm": {"name": "ELMo", "url": "https://github.com/HIT-SCIR/ELMoForManyLangs"}}
    files = ("config.json", "encoder.pkl", "token_embedder.pkl", "char.dic", "word.dic")
    found = locate(fill(tmp_path, *files, **{"meta.json": json.dumps(meta).encode()}))
    assert found.format == "many-langs"


def test_facts_of_the_nlpl_repository(tmp_path: Path) -> None:
    meta = {
        "algorithm": {"name": "Embeddings from Language Models (ELMo)"},
        "corpus": [{"language": "rus", "description": "Taiga"}],
    }
    found = locate(fill(tmp_path, "options.json", "model.hdf5", **{"meta.json": json.dumps(meta).encode()}))
    assert found.facts["language"] == "rus" and "Taiga" in found.facts["about"]


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"{", b"\xff", b'{"corpus": 3}', b'{"corpus": [[]]}', b'{"algorithm": 5}']
)
def test_strange_meta_does_no_harm(tmp_path: Path, content: bytes) -> None:
    assert locate(fill(tmp_path, "options.json", "model.hdf5", **{"meta.json": content})).format == "bilm-hdf5"


def test_other_models_of_the_nlpl_repository(tmp_path: Path) -> None:
    meta = {"algorithm": {"name": "Word2Vec Continuous Skipgram"}}
    with pytest.raises(WeightsError, match="E176.*Word2Vec"):
        locate(fill(tmp_path, "model.bin", "model.ckpt.index", **{"meta.json": json.dumps(meta).encode()}))


# Single files and pairs


def test_one_of_two_files(tmp_path: Path, no_network: None) -> None:
    fill(tmp_path, "options.json", "weights.hdf5")
    for name in ("options.json", "weights.hdf5"):
        assert names(locate(tmp_path / name)) == {"options": "options.json", "weights": "weights.hdf5"}


@pytest.mark.parametrize("given", ["elmo_b_options.json", "elmo_b_weights.hdf5"])
def test_files_of_one_name_belong_together(tmp_path: Path, given: str) -> None:
    fill(tmp_path, *(f"elmo_{which}_{part}" for which in "abc" for part in ("options.json", "weights.hdf5")))
    assert names(locate(tmp_path / given)) == {"options": "elmo_b_options.json", "weights": "elmo_b_weights.hdf5"}


@pytest.mark.parametrize("swapped", [False, True])
def test_pair(tmp_path: Path, no_network: None, swapped: bool) -> None:
    pair = [fill(tmp_path / "a", "o.json") / "o.json", fill(tmp_path / "b", "w.hdf5", "vocab.txt") / "w.hdf5"]
    given = pair[::-1] if swapped else pair
    expected = {"options": pair[0], "weights": pair[1], "vocabulary": tmp_path / "b" / "vocab.txt"}
    assert locate(given).paths == locate("::".join(map(str, given))).paths == expected


def test_pair_with_a_checkpoint(tmp_path: Path) -> None:
    fill(tmp_path, "o.json", "model.ckpt-7.index")
    found = locate([tmp_path / "o.json", tmp_path / "model.ckpt-7"])
    assert found.format == "tf-checkpoint" and names(found) == {"options": "o.json", "prefix": "model.ckpt-7"}


@pytest.mark.parametrize("source", ["a::b::c", "::", "a::", "", [], ["a", "b", "c"]])
def test_no_pair(source: str | list[str]) -> None:
    with pytest.raises(WeightsError, match="E177"):
        locate(source)


def test_local_path_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "ai2-small", "options.json", "weights.hdf5")
    fill(tmp_path / "a::b", "options.json", "weights.hdf5")
    assert locate("ai2-small").paths["options"] == Path("ai2-small/options.json")
    assert locate("a::b").paths["options"] == Path("a::b/options.json")


# What is not read


def test_unknown_source(no_network: None) -> None:
    with pytest.raises(WeightsError, match="E170.*did you mean 'ai2-original'.*nlpl:<number>"):
        locate("ai2-orginal")


def test_embedded_model_is_among_the_names(no_network: None) -> None:
    with pytest.raises(
        WeightsError, match="did you mean 'en_elmo_sm'.*a short name: en_elmo_sm, en_elmo_md, ai2-small"
    ):
        locate("en_elmo_small")


@pytest.mark.parametrize("source", ["no/such/file", "\0", "x" * 5000, "http:", "~nobody/x", "C:\\x"])
def test_strange_sources(source: str, no_network: None) -> None:
    with pytest.raises(WeightsError, match="E170"):
        locate(source)


def test_directory_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="E171.*there: nothing"):
        locate(fill(tmp_path / "empty"))
    with pytest.raises(WeightsError, match="E171.*there: a.py, b.txt"):
        locate(fill(tmp_path / "other", "a.py", "b.txt", ".hidden"))


@pytest.mark.parametrize("pipe", [None, "elmo"])
def test_saved_pipeline_names_the_weights_in_it(tmp_path: Path, pipe: str | None) -> None:
    fill(tmp_path / "saved", "config.cfg", "meta.json", "tokenizer")
    expected = "not weights of ELMo.$"
    if pipe is not None:
        save_bilm(BiLM(TINY), tmp_path / "saved" / pipe / "bilm")
        expected = f"Pass the weights of its elmo pipe: {re.escape(str(tmp_path / 'saved' / pipe / 'bilm'))}$"
    with pytest.raises(WeightsError, match=f"E481.*{expected}"):
        locate(tmp_path / "saved")


@pytest.mark.parametrize(
    ("files", "code"),
    [
        (("options.json",), "E174.*no weights"),
        (("weights.hdf5",), "E174.*no options.json"),
        (("model.ckpt-1.index",), "E174.*no options.json"),
        (("a_options.json", "b_options.json", "weights.hdf5"), "E173.*options.*a_options.json, b_options.json"),
        (("options.json", "epoch_1.hdf5", "epoch_2.hdf5"), "E173.*weights.*epoch_1.hdf5, epoch_2.hdf5"),
    ],
)
def test_part_of_a_model_or_several(tmp_path: Path, files: tuple[str, ...], code: str) -> None:
    with pytest.raises(WeightsError, match=code):
        locate(fill(tmp_path, *files))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "an empty file"),
        (b"some words\n", "a text file"),
        (("größer " * 200).encode(), "a text file"),
        (bytes(100), "unknown kind"),
        (gzip.compress(b"x"), "gzip.*tar.gz.*transformer"),
        (pickle.dumps([1]), "a pickle"),
        (b"SQLite format 3\0", "Magnitude"),
        (bytes([200, 201, 202, 203]) * 10, "unknown kind"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, kind: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(WeightsError, match=f"E172.*{kind}"):
        locate(tmp_path / "file")


def test_files_of_pytorch_are_not_opened(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1)}, tmp_path / "m.pt")
    torch.save({"w": torch.zeros(1)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(WeightsError, match="E172.*PyTorch"):
        locate(tmp_path / "m.pt")
    with pytest.raises(WeightsError, match="E172.*pickle"):
        locate(tmp_path / "old.pt")


def test_arrays_of_numpy_are_no_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", w=np.zeros(1))
    np.save(tmp_path / "m.npy", np.zeros(1))
    with pytest.raises(WeightsError, match="E171"):
        locate(tmp_path / "m.npz")
    with pytest.raises(WeightsError, match="E172.*NumPy"):
        locate(tmp_path / "m.npy")


@pytest.mark.parametrize("name", ["config.json", "options.json"])
def test_transformer_elmo_is_told_apart(tmp_path: Path, name: str) -> None:
    config = {
        "dataset_reader": {"type": "simple_language_modeling"},
        "model": {
            "type": "bidirectional-language-model",
            "contextualizer": {"type": "bidirectional_language_model_transformer", "hidden_dim": 2048},
        },
    }
    fill(tmp_path, "weights.th", **{name: json.dumps(config).encode()})
    with pytest.raises(WeightsError, match="E175.*transformer ELMo"):
        locate(tmp_path / name)
    if name == "config.json":
        with pytest.raises(WeightsError, match="E175.*transformer ELMo"):
            locate(tmp_path)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the superuser may read everything")
def test_directory_that_may_not_be_read(tmp_path: Path) -> None:
    fill(tmp_path / "m", "options.json").chmod(0)
    with pytest.raises(WeightsError, match="E120"):
        locate(tmp_path / "m")


# Zip files


def test_zip_file_is_unpacked_into_the_cache_once(tmp_path: Path, cache: Path, no_network: None) -> None:
    """As the NLPL repository has them."""
    content = fill(tmp_path / "m", "options.json", "model.hdf5", "vocab.txt.gz", "meta.json", "README")
    found = locate(zipped(tmp_path / "m.zip", content))
    assert names(found) == {"options": "options.json", "weights": "model.hdf5", "vocabulary": "vocab.txt.gz"}
    assert all(path.is_relative_to(cache) for path in found.paths.values())
    made = found.paths["weights"].stat().st_mtime_ns
    assert locate(str(tmp_path / "m.zip")).paths["weights"].stat().st_mtime_ns == made


def test_changed_zip_file_is_unpacked_anew(tmp_path: Path) -> None:
    zipped(tmp_path / "m.zip", fill(tmp_path / "m", "options.json", "model.hdf5"))
    first = locate(tmp_path / "m.zip")
    (tmp_path / "m" / "model.hdf5").write_bytes(HDF5 + b"more")
    zipped(tmp_path / "m.zip", tmp_path / "m")
    second = locate(tmp_path / "m.zip")
    assert first.paths["weights"] != second.paths["weights"]
    assert second.paths["weights"].read_bytes() == HDF5 + b"more"


def test_zip_file_by_any_name(tmp_path: Path) -> None:
    zipped(tmp_path / "download", fill(tmp_path / "m", "config.json", "encoder.pkl", "token_embedder.pkl"))
    assert locate(tmp_path / "download").format == "many-langs"


# Addresses


def test_address_of_a_zip_file(tmp_path: Path, server: WebServer) -> None:
    data = zipped(tmp_path / "m.zip", fill(tmp_path / "m", "options.json", "model.hdf5")).read_bytes()
    url = server.serve_file("/11/1.zip", data)
    found = locate(url)
    assert found.format == "bilm-hdf5"
    assert found.facts["urls"] == [url]
    assert found.facts["sha256"] == {"1.zip": hashlib.sha256(data).hexdigest()}
    assert locate(url, offline=True).paths == found.paths


def test_pair_of_addresses(tmp_path: Path, server: WebServer) -> None:
    options, weights = server.serve_file("/a/options.json", OPTIONS), server.serve_file("/b/weights.hdf5", HDF5)
    found = locate([options, weights])
    assert found.paths["options"].read_bytes() == OPTIONS and found.paths["weights"].read_bytes() == HDF5
    assert found.facts["urls"] == [options, weights]
    local = fill(tmp_path, "options.json") / "options.json"
    assert locate(f"{local}::{weights}").paths["weights"] == found.paths["weights"]


def test_address_that_came_through_a_path(server: WebServer) -> None:
    url = server.serve_file("/weights.hdf5", HDF5)
    with pytest.raises(WeightsError, match="E174"):
        locate(Path(url))
    assert server.requests


def test_checksum_in_an_address(server: WebServer) -> None:
    good = hashlib.sha256(HDF5).hexdigest()
    options, weights = server.serve_file("/options.json", OPTIONS), server.serve_file("/weights.hdf5", HDF5)
    with pytest.raises(WeightsError, match="E164"):
        locate([options, f"{weights}#sha256={'0' * 64}"])
    assert locate([options, f"{weights}#sha256={good}"]).facts["sha256"]["weights.hdf5"] == good
    with pytest.raises(WeightsError, match="E161.*sha256="):
        locate([options, f"{weights}#sha256=123"])


def test_half_a_pair_on_the_web(server: WebServer) -> None:
    with pytest.raises(WeightsError, match="E174.*::"):
        locate(server.serve_file("/options.json", OPTIONS))


@pytest.mark.parametrize("url", ["ftp://host/m.zip", "file:///etc/passwd", "s3://bucket/m.zip"])
def test_other_addresses(url: str, no_network: None) -> None:
    with pytest.raises(WeightsError, match="E161"):
        locate(url)


# Short names


@pytest.fixture
def known(server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WebServer:
    """Three models on the server, by the names "pair", "archive" and "checkpoint"."""
    archive = zipped(tmp_path / "m.zip", fill(tmp_path / "m", "options.json", "model.hdf5")).read_bytes()
    contents = {"options": OPTIONS, "weights": HDF5, "softmax": HDF5 + b"s", "vocabulary": b"a\n", "archive": archive}

    def file(role: str, name: str) -> RemoteFile:
        url = server.serve_file(f"/{name}", contents.get(role, b"x"))
        return RemoteFile(role, name, (server.url("/gone"), url))

    options = file("options", "options.json")
    head = file("softmax", "softmax_weights.hdf5"), file("vocabulary", "vocab.txt")
    shards = [file("checkpoint", f"model.ckpt-5.{end}") for end in ("index", "data-00000-of-00001")]
    models = {
        "pair": KnownModel("pair", "us", (options, file("weights", "weights.hdf5"), *head), "en", "CC0"),
        "archive": KnownModel("archive", "us", (file("archive", "7.zip"),), "ru"),
        "checkpoint": KnownModel("checkpoint", "us", (options, *shards, head[1])),
    }
    monkeypatch.setattr(source_module, "find_known_model", models.get)
    return server


def test_short_name(known: WebServer, cache: Path) -> None:
    found = locate("pair")
    assert names(found) == {"options": "options.json", "weights": "weights.hdf5"}
    facts = {name: found.facts[name] for name in ("name", "about", "language", "licence", "source")}
    assert facts == {"name": "pair", "about": "us", "language": "en", "licence": "CC0", "source": "pair"}
    assert found.paths["weights"] == cache / "models" / "pair" / "weights.hdf5"
    assert found.facts["urls"] == [known.url("/options.json"), known.url("/weights.hdf5")]


def test_softmax_is_fetched_only_where_asked_for(known: WebServer) -> None:
    locate("pair")
    assert "/softmax_weights.hdf5" not in [path for path, _ in known.requests]
    found = locate("pair", with_softmax=True)
    assert (names(found)["softmax"], names(found)["vocabulary"]) == ("softmax_weights.hdf5", "vocab.txt")


def test_short_name_of_a_zip_file(known: WebServer) -> None:
    found = locate("archive")
    assert names(found) == {"options": "options.json", "weights": "model.hdf5"}
    assert found.facts["language"] == "ru" and "licence" not in found.facts


def test_short_name_of_a_checkpoint(known: WebServer, cache: Path) -> None:
    found = locate("checkpoint")
    assert found.format == "tf-checkpoint" and names(found) == {"options": "options.json", "prefix": "model.ckpt-5"}
    assert sorted(path.name for path in found.paths["prefix"].parent.glob("model.*")) == [
        "model.ckpt-5.data-00000-of-00001",
        "model.ckpt-5.index",
    ]


def test_offline_names_what_is_missing(known: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACY_ELMO_OFFLINE", "1")
    with pytest.raises(WeightsError, match="E160.*options.json.*models"):
        locate("pair")
    assert known.requests == []


def test_offline_takes_what_is_there(known: WebServer) -> None:
    found = locate("pair")
    assert locate("pair", offline=True) == found


def test_files_that_were_put_there_by_hand(known: WebServer, cache: Path) -> None:
    """What the message of E160 advises."""
    for name, content in (("options.json", OPTIONS), ("weights.hdf5", HDF5)):
        (cache / "models" / "pair").mkdir(parents=True, exist_ok=True)
        (cache / "models" / "pair" / name).write_bytes(content)
    assert names(locate("pair", offline=True)) == {"options": "options.json", "weights": "weights.hdf5"}


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "\ud800", "~nobody\0"])
def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(WeightsError, match="E170"):
        locate(name)
    for source in (["options.json", name], [name, "weights.hdf5"], f"{name}::weights.hdf5"):
        with pytest.raises(WeightsError, match="E120") as caught:
            locate(source)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("source", [None, 3, b"model", {"model": 1}])
def test_what_is_no_source_at_all(source: object) -> None:
    with pytest.raises(WeightsError, match="E170"):
        locate(source)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path / "pipe", [tmp_path / "pipe", "weights.hdf5"]):
        with pytest.raises(WeightsError, match="E172.*no plain file"):
            locate(source)


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("http://[::1]/m.zip", ["http://[::1]/m.zip"]),
        ("http://[fe80::1%eth0]:80/o.json::http://[::1]/w", ["http://[fe80::1%eth0]:80/o.json", "http://[::1]/w"]),
        ("o.json::http://[::1]/w", ["o.json", "http://[::1]/w"]),
        ("a[1].json::b[2].hdf5", ["a[1].json", "b[2].hdf5"]),
    ],
)
def test_colons_of_an_address_do_not_part_a_pair(source: str, asked: list[str]) -> None:
    assert _parts(source) == asked


@pytest.mark.parametrize("name", ["en_elmo_sm", "en_elmo_md"])
def test_an_embedded_model_by_name_unless_a_directory_has_it(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = locate(name)
    assert found.format == "native" and [path.name for path in found.paths.values()] == [name]
    (tmp_path / name).mkdir()
    with pytest.raises(WeightsError, match="E17"):
        locate(name)
