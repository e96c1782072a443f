"""`python -m spacy elmo embed`: what is in the file, and what is said where there cannot be one."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from typer.testing import Result

from spacy_elmo.cli.embed import embed_texts
from spacy_elmo.cli.vector_files import vector_writer
from spacy_elmo.errors import ElmoError
from spacy_elmo.weights.native import load_bilm
from tests.cli.conftest import Command

TEXTS = ["The bank  lends.", "", "Fluß 😀 bank", "   ", "x"]


@pytest.fixture
def nlp(source: Path) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"source": str(source)}, "store": "layers"})
    return nlp


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    return path


def read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as data:
            return dict(data)
    h5py = pytest.importorskip("h5py")
    with h5py.File(path) as file:
        return {name: file[name][...] for name in file}


def texts_of(data: dict[str, np.ndarray]) -> list[str]:
    starts = data["text_starts"]
    return [data["text"][start:end].tobytes().decode() for start, end in zip(starts, starts[1:])]


def files_of(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("suffix", [".npz", ".h5", ".hdf5"])
@pytest.mark.parametrize("layers", ["mixed", "all"])
def test_file_holds_what_the_pipeline_gives(
    nlp: Language, source: Path, lines: Path, tmp_path: Path, spacy_command: Command, suffix: str, layers: str
) -> None:
    output = tmp_path / f"vectors{suffix}"
    result = spacy_command("elmo", "embed", lines, output, "--source", source, "--layers", layers)
    assert result.exit_code == 0, result.output
    data = read(output)
    docs = list(nlp.pipe(TEXTS))
    assert texts_of(data) == TEXTS
    assert np.diff(data["row_starts"]).tolist() == [len(doc) for doc in docs]
    expected = np.concatenate([doc._.elmo_layers if layers == "all" else doc._.elmo for doc in docs])
    assert data["vectors"].dtype == np.float32
    np.testing.assert_allclose(data["vectors"], expected, atol=1e-6)
    tokens = [token for doc in docs for token in doc]
    assert data["offsets"].tolist() == [[token.idx, token.idx + len(token)] for token in tokens]


def test_half_precision(lines: Path, source: Path, tmp_path: Path, spacy_command: Command) -> None:
    for name, options in (("full", []), ("half", ["--half"])):
        spacy_command("elmo", "embed", lines, tmp_path / f"{name}.npz", "--source", source, *options)
    full, half = read(tmp_path / "full.npz")["vectors"], read(tmp_path / "half.npz")["vectors"]
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, full.astype(np.float16))


def test_jsonl_by_suffix(nlp: Language, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "two\\nlines\\u0000", "id": 1}\n\n{"text": ""}\r\n{"text": "z"}', encoding="utf-8")
    embed_texts(nlp, path, tmp_path / "v.h5")
    assert texts_of(read(tmp_path / "v.h5")) == ["two\nlines\0", "", "", "z"]


def test_plain_text_that_looks_like_json_stays_text(nlp: Language, tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text('\ufeff{"text": "a"}\r\nb\x0bc\n', encoding="utf-8")
    embed_texts(nlp, path, tmp_path / "v.npz")
    assert texts_of(read(tmp_path / "v.npz")) == ['{"text": "a"}', "b\x0bc"]


@pytest.mark.parametrize("options, given", [([], b"a b\nc\n"), (["--jsonl"], b'{"text": "a b"}\n{"text": "c"}\n')])
def test_standard_input(source: Path, tmp_path: Path, spacy_command: Command, options: list[str], given: bytes) -> None:
    output = tmp_path / "v.npz"
    result = spacy_command("elmo", "embed", "-", output, "--source", source, *options, stdin=given)
    assert result.exit_code == 0, result.output
    assert texts_of(read(output)) == ["a b", "c"]


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_no_text_at_all(nlp: Language, tmp_path: Path, suffix: str) -> None:
    (tmp_path / "empty.txt").touch()
    assert embed_texts(nlp, tmp_path / "empty.txt", tmp_path / f"v{suffix}") == (0, 0)
    data = read(tmp_path / f"v{suffix}")
    assert data["vectors"].shape == (0, 16)
    assert data["row_starts"].tolist() == [0]


def test_batches_change_nothing(nlp: Language, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embed_texts(nlp, lines, tmp_path / "one.npz")
    monkeypatch.setattr("spacy_elmo.cli.embed._BATCH_CHARACTERS", 5)
    embed_texts(nlp, lines, tmp_path / "many.npz", batch_size=2)
    one, many = read(tmp_path / "one.npz"), read(tmp_path / "many.npz")
    np.testing.assert_allclose(one["vectors"], many["vectors"], atol=1e-6)
    assert texts_of(one) == texts_of(many)


def test_saved_pipeline(nlp: Language, lines: Path, tmp_path: Path, spacy_command: Command) -> None:
    nlp.add_pipe("sentencizer", before="elmo")
    nlp.to_disk(tmp_path / "pipeline")
    result = spacy_command("elmo", "embed", lines, tmp_path / "v.npz", "--model", tmp_path / "pipeline")
    assert result.exit_code == 0, result.output
    expected = np.concatenate([doc._.elmo for doc in nlp.pipe(TEXTS)])
    np.testing.assert_allclose(read(tmp_path / "v.npz")["vectors"], expected, atol=1e-6)


@pytest.mark.parametrize(
    "name, content, code, place",
    [
        ("bad.jsonl", b'{"text": "a"}\n{"text": \n', "E402", "line 2"),
        ("bad.jsonl", b'{"txt": "a"}\n', "E402", "line 1"),
        ("bad.jsonl", b'{"text": 3}\n', "E402", "line 1"),
        ("bad.jsonl", b'"a"\n', "E402", "line 1"),
        ("bad.jsonl", b'{"text": "\\ud800"}\n', "E402", "lone surrogate"),
        ("bad.jsonl", b"[" * 100_000, "E402", "line 1"),
        ("bad.jsonl", b'{"text": ' + b"1" * 5000 + b"}", "E402", "line 1"),
        ("bad.txt", b"a\nb\n\xff\n", "E401", "line 3"),
        ("bad.jsonl", b'{"text": "\xe9"}', "E401", "line 1"),
    ],
)
def test_bad_line_is_named_and_nothing_is_left(
    source: Path, tmp_path: Path, spacy_command: Command, name: str, content: bytes, code: str, place: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    output = tmp_path / "v.npz"
    output.write_bytes(b"from before")
    result = spacy_command("elmo", "embed", path, output, "--source", source)
    assert result.exit_code == 1
    assert f"[ELMO-{code}]" in result.output and place in result.output and name in result.output
    assert "Traceback" not in result.output
    assert output.read_bytes() == b"from before"
    assert files_of(tmp_path) == sorted([name, "v.npz"])


def test_missing_input(source: Path, tmp_path: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "embed", tmp_path / "none.txt", tmp_path / "v.npz", "--source", source)
    assert result.exit_code == 1 and "[ELMO-E400]" in result.output


def test_unknown_suffix(source: Path, lines: Path, tmp_path: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "embed", lines, tmp_path / "v.csv", "--source", source)
    assert result.exit_code == 1 and "[ELMO-E404]" in result.output and "'.csv'" in result.output


def test_line_beyond_the_limit_of_a_pipeline(nlp: Language, lines: Path, tmp_path: Path) -> None:
    nlp.max_length = 14
    with pytest.raises(ElmoError, match="E403.*line 1, has 16 characters"):
        embed_texts(nlp, lines, tmp_path / "v.npz")


def test_missing_weights(lines: Path, tmp_path: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "embed", lines, tmp_path / "v.npz", "--source", tmp_path / "nowhere")
    assert result.exit_code == 1 and "[ELMO-E170]" in result.output and "nowhere" in result.output


def test_pipeline_without_elmo(lines: Path, tmp_path: Path, spacy_command: Command) -> None:
    spacy.blank("en").to_disk(tmp_path / "plain")
    result = spacy_command("elmo", "embed", lines, tmp_path / "v.npz", "--model", tmp_path / "plain")
    assert result.exit_code == 1 and "[ELMO-E407]" in result.output


def is_one_message(result: Result, code: str) -> bool:
    said = result.output
    return result.exit_code == 1 and f"[ELMO-{code}]" in said and ".." not in said and "Traceback" not in said


@pytest.mark.parametrize(
    "options, code",
    [
        (["--model", "no_such_pipeline"], "E408"),
        (["--lang", "zzz"], "E415"),
        (["--lang", "punctuation"], "E415"),
    ],
)
def test_pipeline_that_is_not_there(
    lines: Path, tmp_path: Path, spacy_command: Command, options: list[str], code: str
) -> None:
    assert is_one_message(spacy_command("elmo", "embed", lines, tmp_path / "v.npz", *options), code)


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("meta.json", b"{", "meta.json: Expected object or value"),
        ("meta.json", b"\xff", "meta.json: 'utf-8' codec"),
        ("meta.json", b"[]", "meta.json: [E054]"),
        ("config.cfg", b"[nlp\nx", "config.cfg: Config validation error"),
        ("config.cfg", b"[nlp]\n[nlp]\n", "config.cfg: While reading"),
        ("config.cfg", b"", "no [nlp] section"),
        ("tokenizer", b"xx", "extra data"),
        ("vocab/strings.json", b"{", "Expected object or value"),
        ("elmo/cfg", b"[1]", "cannot convert"),
    ],
)
def test_broken_pipeline_is_one_message(
    nlp: Language, lines: Path, tmp_path: Path, spacy_command: Command, name: str, content: bytes, said: str
) -> None:
    nlp.to_disk(tmp_path / "pipeline")
    (tmp_path / "pipeline" / name).write_bytes(content)
    result = spacy_command("elmo", "embed", lines, tmp_path / "v.npz", "--model", tmp_path / "pipeline")
    assert is_one_message(result, "E413") and said in result.output


def test_errors_of_the_catalogue_keep_their_code(
    nlp: Language, lines: Path, tmp_path: Path, spacy_command: Command
) -> None:
    nlp.to_disk(tmp_path / "pipeline")
    (tmp_path / "pipeline" / "elmo" / "bilm" / "config.json").write_bytes(b"{")
    result = spacy_command("elmo", "embed", lines, tmp_path / "v.npz", "--model", tmp_path / "pipeline")
    assert is_one_message(result, "E101")


@pytest.mark.parametrize("error", [ValueError("CuPy is not installed."), RuntimeError("invalid device ordinal")])
def test_gpu_that_is_not_there(
    lines: Path, tmp_path: Path, spacy_command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(gpu_id: int) -> None:
        raise error

    monkeypatch.setattr("spacy.cli._util.require_gpu", refuse)
    result = spacy_command("elmo", "embed", lines, tmp_path / "v.npz", "--gpu-id", "7")
    assert is_one_message(result, "E414") and "GPU 7" in result.output


@pytest.mark.parametrize("name, code", [("directory.npz", "E406"), ("v.csv", "E404")])
def test_output_that_cannot_be_is_noticed_before_the_work(
    lines: Path, tmp_path: Path, spacy_command: Command, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    (tmp_path / "directory.npz").mkdir()
    monkeypatch.setattr("spacy_elmo.cli.embed._blank_pipeline", lambda *_: pytest.fail("begun"))
    assert is_one_message(spacy_command("elmo", "embed", lines, tmp_path / name), code)


def test_source_that_is_a_file(lines: Path, tmp_path: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "embed", lines, tmp_path / "v.npz", "--source", lines)
    assert is_one_message(result, "E172") and f"{lines} is a text file" in result.output


def test_pipeline_and_weights_together_are_refused(lines: Path, tmp_path: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "embed", lines, tmp_path / "v.npz", "--model", "a", "--source", "b")
    assert result.exit_code == 2 and "not both" in result.output


def test_hdf5_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_import = builtins.__import__

    def without_h5py(name: str, *arguments: Any) -> Any:
        if name == "h5py":
            raise ImportError(name)
        return plain_import(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without_h5py)
    with pytest.raises(ElmoError, match="E405"), vector_writer(tmp_path / "v.h5", (4,)):
        pytest.fail("begun")


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_place_that_cannot_be_written(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ElmoError, match="E406"), vector_writer(tmp_path / "file" / f"v{suffix}", (4,)):
        pytest.fail("begun")


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_interrupted_writing_leaves_what_was_there(tmp_path: Path, suffix: str) -> None:
    output = tmp_path / f"v{suffix}"
    output.write_bytes(b"from before")
    with pytest.raises(KeyboardInterrupt), vector_writer(output, (4,)) as writer:
        writer.write("a", np.array([[0, 1]]), np.ones((1, 4)))
        raise KeyboardInterrupt
    assert output.read_bytes() == b"from before"
    assert files_of(tmp_path) == [output.name]


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_many_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr("spacy_elmo.cli.hdf5_columns.DatasetColumn.GATHERED", 100)
    vectors = np.arange(600, dtype=np.float32).reshape(100, 2, 3)
    with vector_writer(tmp_path / f"v{suffix}", (2, 3)) as writer:
        for first in range(0, 100, 7):
            piece = vectors[first : first + 7]
            writer.write(f"text {first}", np.zeros((len(piece), 2)), piece)
    data = read(tmp_path / f"v{suffix}")
    np.testing.assert_array_equal(data["vectors"], vectors)
    assert texts_of(data) == [f"text {first}" for first in range(0, 100, 7)]


def test_json_lines_keep_every_character(nlp: Language, tmp_path: Path) -> None:
    texts = ["a\u2028b", "\U0001d518", "e\u0301", '"\\'] * 3
    path = tmp_path / "t.ndjson"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    embed_texts(nlp, path, tmp_path / "v.npz", batch_size=5)
    assert texts_of(read(tmp_path / "v.npz")) == texts


# The files of AllenNLP and bilm-tf


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text("The bank's  door .\n\n He said so \nThe bank's  door .\n", encoding="utf-8")
    return path


SENTENCES = [["The", "bank's", "door", "."], [], ["He", "said", "so"], ["The", "bank's", "door", "."]]


def layers_of(source: Path, words: list[str]) -> np.ndarray:
    with torch.inference_mode():
        layers: np.ndarray = load_bilm(source)([words]).layers.numpy()
    return layers


@pytest.mark.parametrize("layers", ["all", "average", "top", None])
def test_layout_of_allennlp(
    source: Path, sentences: Path, tmp_path: Path, spacy_command: Command, layers: str | None
) -> None:
    h5py = pytest.importorskip("h5py")
    options = [] if layers is None else ["--layers", layers]
    output = tmp_path / "v.hdf5"
    result = spacy_command("elmo", "embed", sentences, output, "--source", source, "--format", "allennlp", *options)
    assert result.exit_code == 0, result.output
    with h5py.File(output) as file:
        assert set(file) == {"0", "1", "2", "3", "sentence_to_index"}
        for number, words in enumerate(SENTENCES):
            expected = layers_of(source, words)
            if layers in ("all", None):
                expected = expected.swapaxes(0, 1)
            else:
                expected = expected.mean(axis=1) if layers == "average" else expected[:, -1]
            found = file[str(number)]
            assert found.shape == expected.shape and found.dtype == np.float32
            np.testing.assert_allclose(found[...], expected, atol=1e-6)
        assert file["sentence_to_index"].shape == (1,)
        index = json.loads(file["sentence_to_index"].asstr()[0])
        assert index == {"The bank's  door .": "3", "": "1", "He said so": "2"}


def test_layout_of_bilm_tf(source: Path, sentences: Path, tmp_path: Path, spacy_command: Command) -> None:
    h5py = pytest.importorskip("h5py")
    output = tmp_path / "v.h5"
    result = spacy_command("elmo", "embed", sentences, output, "--source", source, "--format", "bilm-tf")
    assert result.exit_code == 0, result.output
    with h5py.File(output) as file:
        assert set(file) == {"0", "1", "2", "3"}
        assert [file[str(i)].shape for i in range(4)] == [(3, 4, 16), (3, 0, 16), (3, 3, 16), (3, 4, 16)]


def test_sentences_may_be_forgotten(source: Path, sentences: Path, tmp_path: Path, spacy_command: Command) -> None:
    h5py = pytest.importorskip("h5py")
    options = ["--format", "allennlp", "--forget-sentences", "--half"]
    result = spacy_command("elmo", "embed", sentences, tmp_path / "v.h5", "--source", source, *options)
    assert result.exit_code == 0, result.output
    with h5py.File(tmp_path / "v.h5") as file:
        assert "sentence_to_index" not in file and file["0"].dtype == np.float16


def test_tokens_of_spacy_in_the_layout_of_allennlp(
    source: Path, sentences: Path, tmp_path: Path, spacy_command: Command
) -> None:
    h5py = pytest.importorskip("h5py")
    options = ["--format", "allennlp", "--no-words", "--layers", "mixed"]
    result = spacy_command("elmo", "embed", sentences, tmp_path / "v.h5", "--source", source, *options)
    assert result.exit_code == 0, result.output
    with h5py.File(tmp_path / "v.h5") as file:
        assert file["0"].shape == (len(spacy.blank("en")("The bank's  door .")), 16)


def test_words_between_spaces_in_columns(source: Path, sentences: Path, tmp_path: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "embed", sentences, tmp_path / "v.npz", "--source", source, "--words")
    assert result.exit_code == 0, result.output
    data = read(tmp_path / "v.npz")
    assert np.diff(data["row_starts"]).tolist() == [4, 0, 3, 4]


@pytest.mark.parametrize("layers", ["average", "top"])
def test_average_and_top_in_columns(source: Path, lines: Path, tmp_path: Path, nlp: Language, layers: str) -> None:
    embed_texts(nlp, lines, tmp_path / "v.npz", layers)
    expected = np.concatenate([doc._.elmo_layers for doc in nlp.pipe(TEXTS)])
    expected = expected.mean(axis=1) if layers == "average" else expected[:, -1]
    np.testing.assert_allclose(read(tmp_path / "v.npz")["vectors"], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "allennlp"], "E404"),
        (["--format", "bilm-tf"], "E404"),
        (["--format", "bilm-tf", "--layers", "top"], "all"),
    ],
)
def test_layouts_are_hdf5(
    source: Path, sentences: Path, tmp_path: Path, spacy_command: Command, options: list[str], message: str
) -> None:
    result = spacy_command("elmo", "embed", sentences, tmp_path / "v.npz", "--source", source, *options)
    assert result.exit_code != 0 and message in result.output
    assert not (tmp_path / "v.npz").exists()


def test_weights_of_others(lines: Path, tmp_path: Path, spacy_command: Command) -> None:
    from tests.weights.hdf5_model import HDF5Model

    files = HDF5Model(tmp_path / "pair")
    result = spacy_command("elmo", "embed", lines, tmp_path / "v.npz", "--source", files.options)
    assert result.exit_code == 0 and "'canonical' was assumed" in result.output
    assert read(tmp_path / "v.npz")["vectors"].shape[1] == 10


def test_weights_in_place_of_a_pipeline(source: Path, lines: Path, tmp_path: Path, spacy_command: Command) -> None:
    for weights in (source, "en_elmo_sm"):
        result = spacy_command("elmo", "embed", lines, tmp_path / "v.npz", "--model", weights)
        assert is_one_message(result, "E483") and f"--source {weights}" in result.output


def test_pipeline_in_place_of_weights(nlp: Language, lines: Path, tmp_path: Path, spacy_command: Command) -> None:
    nlp.to_disk(tmp_path / "pipeline")
    result = spacy_command("elmo", "embed", lines, tmp_path / "v.npz", "--source", tmp_path / "pipeline")
    assert is_one_message(result, "E482") and f"--model {tmp_path / 'pipeline'}" in result.output
