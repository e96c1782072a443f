"""bilm-tf's models over a table of whole words: their vocabulary files, and reading and writing them."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.errors import WeightsError
from spacy_elmo.weights.bilm_hdf5 import load_bilm_hdf5, load_softmax_hdf5, save_bilm_hdf5
from spacy_elmo.weights.bilm_vocabulary import read_words, vocabulary_bytes
from spacy_elmo.weights.native import load_bilm, save_bilm
from spacy_elmo.weights.tf_checkpoint import load_tf_checkpoint
from tests.golden import read_golden, read_token_vectors
from tests.weights.hdf5_model import (
    WORDS,
    WORDS_CONFIG,
    HDF5Model,
    assert_carried_layers_are_golden,
    bilm_tf_datasets,
    read_datasets,
)
from tests.weights.tf_writer import bilm_tf_variables, write_bundle

h5py = pytest.importorskip("h5py")

TRAINED_WITH_A_SHARED_TABLE = {"bidirectional": True, "share_embedding_softmax": True}


@pytest.fixture
def files(tmp_path: Path) -> HDF5Model:
    return HDF5Model(tmp_path / "words", WORDS_CONFIG)


# Vocabulary files.


def test_words_are_read_as_bilm_tf_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes("<S>\r\n</S>\n!!!MAXTERMID\n  na\u00efve \n\nlast".encode())
    assert read_words(path) == ["<S>", "</S>", "na\u00efve", "", "last"]


def test_compressed_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt.gz"
    path.write_bytes(gzip.compress(b"<S>\n</S>\n"))
    assert read_words(str(path)) == ["<S>", "</S>"]


def test_words_are_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    for words in ([], WORDS, ["", "two words", ""]):
        path.write_bytes(vocabulary_bytes(words))
        assert read_words(path) == words


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("vocab.txt", None, "E120"),
        ("vocab.txt", b"caf\xe9\n", "E140"),
        ("vocab.txt.gz", b"<S>\n", "E140"),
        ("vocab.txt.gz", gzip.compress(b"<S>\n" * 999)[:-9], "E140"),
        ("vocab.txt.gz", gzip.compress(b"<S>\n" * 999)[:20] + b"\xff" * 20, "E140"),
    ],
)
def test_vocabulary_that_cannot_be_read(tmp_path: Path, name: str, content: bytes | None, code: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WeightsError, match=rf"{code}.*{name}"):
        read_words(path)


def test_compressed_vocabulary_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "vocab.txt.gz"
    path.write_bytes(gzip.compress(b"a\n" * 2**20))
    monkeypatch.setattr("spacy_elmo.weights.bilm_vocabulary._MOST_BYTES", 2**20)
    with pytest.raises(WeightsError, match=r"E140.*more than 1,048,576 bytes"):
        read_words(path)


def test_a_vocabulary_that_is_all_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would be a string of its own, which takes fifty times the memory of its bytes."""
    (tmp_path / "vocab.txt.gz").write_bytes(gzip.compress(b"a\n" * 2**24, 1))
    with pytest.raises(WeightsError, match="E140.*more than 16,777,216 bytes"):
        read_words(tmp_path / "vocab.txt.gz")
    monkeypatch.setattr("spacy_elmo.weights.bilm_vocabulary.MAX_ENTRIES", 9)
    for end in ("\n", "\r", "\r\n"):
        (tmp_path / "vocab.txt").write_text(f"a{end}" * 9, newline="")
        assert read_words(tmp_path / "vocab.txt") == ["a"] * 9
        (tmp_path / "vocab.txt").write_text(f"a{end}" * 10, newline="")
        with pytest.raises(WeightsError, match="E140.*more than 9 lines"):
            read_words(tmp_path / "vocab.txt")


# Models.


def test_golden_sentences_by_a_table_of_their_words(fixtures_dir: Path, tmp_path: Path) -> None:
    """AllenNLP wrote a table of the words of these sentences: with it the LSTMs must give what they give with characters."""
    golden = read_golden(fixtures_dir, "allennlp")
    files = HDF5Model(tmp_path / "words", replace(WORDS_CONFIG, projection=16, cells=64))
    words, table = read_token_vectors(fixtures_dir)
    with h5py.File(files.weights, "w") as file:
        file["embedding"] = table
        for name, values in read_datasets(golden.weights).items():
            if name.startswith("RNN_"):
                file[name] = values
    vocabulary = fixtures_dir / "allennlp" / "elmo" / "vocab_test.txt"
    bilm = load_bilm_hdf5(files.options, files.weights, initial_state="carry", vocabulary_path=vocabulary)
    assert bilm.config.n_words == len(words) == 458
    assert_carried_layers_are_golden(bilm, golden)


def test_model_loads_bit_for_bit(files: HDF5Model) -> None:
    files.assert_loads_as(WORDS_CONFIG)
    table = files.parameters["encoder.words"]
    vectors = files.load().encode_words(["cat", "na\u00efve", "dog", "<S>"]).numpy()
    np.testing.assert_array_equal(vectors, table[[4, 6, 2, 2]])


def test_unknown_words_without_a_row_of_their_own_are_zeros(files: HDF5Model) -> None:
    assert files.vocabulary is not None
    files.vocabulary.write_text("\n".join(["<S>", "</S>", "<unk>", *WORDS[3:]]), encoding="utf8")
    np.testing.assert_array_equal(files.load().encode_words(["dog"]).numpy(), np.zeros((1, 5)))


def test_vocabulary_of_another_model(files: HDF5Model) -> None:
    assert files.vocabulary is not None
    files.vocabulary.write_text("\n".join(WORDS[:-1]), encoding="utf8")
    files.assert_refused("E142", str(files.weights), "has 7 words", "has 8 rows")


def test_vocabulary_that_is_missing(files: HDF5Model) -> None:
    files.vocabulary = None
    files.assert_refused("E123", str(files.options))


def test_options_of_another_model(files: HDF5Model) -> None:
    files.replace("char_embed", np.zeros((261, 3), "float32"))
    files.assert_refused("E131", "char_embed")


@pytest.mark.parametrize(("values", "code"), [(None, "E128"), (np.zeros((8, 4), "float32"), "E129"), (1.0, "E142")])
def test_table_that_is_none(files: HDF5Model, values: Any, code: str) -> None:
    files.replace("embedding", values)
    files.assert_refused(code)


def test_model_comes_out_bit_for_bit_by_way_of_the_native_format(files: HDF5Model, tmp_path: Path) -> None:
    save_bilm(files.load(), tmp_path / "native")
    options, weights = tmp_path / "options.json", tmp_path / "weights.hdf5"
    _, allennlp = save_bilm_hdf5(load_bilm(tmp_path / "native"), options, weights)
    assert allennlp == "AllenNLP cannot read this model: it reads whole words."
    ours, theirs = read_datasets(weights), read_datasets(files.weights)
    assert {name: values.tobytes() for name, values in ours.items()} == {
        name: values.tobytes() for name, values in theirs.items()
    }
    assert (tmp_path / "vocab.txt").read_text(encoding="utf8") == "".join(f"{word}\n" for word in WORDS)
    read = load_bilm_hdf5(options, weights, vocabulary_path=tmp_path / "vocab.txt")
    assert read.config == WORDS_CONFIG and torch.equal(read.encoder.words, files.load().encoder.words)


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_no_failure_leaves_the_words_of_two_models(
    files: HDF5Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """The same options with words in another order would be another model. They move last, after weights and words."""
    options, weights = tmp_path / "options.json", tmp_path / "weights.hdf5"
    save_bilm_hdf5(files.load(), options, weights)
    assert files.vocabulary is not None
    files.vocabulary.write_text("\n".join([*WORDS[:3], *reversed(WORDS[3:])]), encoding="utf8")
    other = files.load()
    moves: list[Path] = []
    replace_file = os.replace

    def failing_replace(source: Path, target: Path) -> None:
        moves.append(target)
        if len(moves) == fails_at:
            raise OSError("cut short")
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", failing_replace)
    with pytest.raises(OSError, match="cut short"):
        save_bilm_hdf5(other, options, weights)
    assert options.exists() == (fails_at < 3)
    assert (read_words(tmp_path / "vocab.txt") == WORDS) == (fails_at < 4)
    monkeypatch.undo()
    save_bilm_hdf5(other, options, weights)
    assert read_words(tmp_path / "vocab.txt")[3] == "."
    names = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert names == ["options.json", "vocab.txt", "weights.hdf5"]


@pytest.mark.parametrize("shared", [True, False])
def test_tensorflow_checkpoint_of_words(files: HDF5Model, tmp_path: Path, shared: bool) -> None:
    """The softmax may have the table as its weight; then only its bias is in the checkpoint."""
    random = np.random.default_rng(0)
    datasets = bilm_tf_datasets(WORDS_CONFIG, files.parameters)
    weight, bias = random.normal(size=(8, 5)).astype("float32"), random.normal(size=8).astype("float32")
    datasets["softmax/b"] = bias
    if shared:
        files.settings.update(TRAINED_WITH_A_SHARED_TABLE)
        files.write_options()
        weight = datasets["embedding"]
    else:
        datasets["softmax/W"] = weight
    write_bundle(tmp_path / "model.ckpt-1", bilm_tf_variables(datasets))
    bilm, head = load_tf_checkpoint(files.options, tmp_path / "model.ckpt-1", vocabulary_path=files.vocabulary)
    assert bilm.config == WORDS_CONFIG
    np.testing.assert_array_equal(bilm.encoder.words.numpy(), files.parameters["encoder.words"])
    assert head is not None
    np.testing.assert_array_equal(head.output.weight.detach().numpy(), weight)
    np.testing.assert_array_equal(head.output.bias.detach().numpy(), bias)


def test_dump_of_a_shared_table_has_no_softmax(files: HDF5Model) -> None:
    assert load_softmax_hdf5(files.weights, WORDS_CONFIG.projection) is None
