"""options.json: what is read, what is assumed, what is ignored, what is refused, and what is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spacy_elmo.errors import ConfigError, ElmoWarning, WeightsError
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.weights.bilm_options import options_of, read_options

CONFIG = BiLMConfig(character_dim=3, filters=((1, 4), (2, 2)), max_characters=8, projection=5, cells=6)
OPTIONS = {
    "lstm": {
        "dim": 6,
        "projection_dim": 5,
        "n_layers": 2,
        "use_skip_connections": True,
        "cell_clip": 3,
        "proj_clip": 3,
    },
    "char_cnn": {
        "embedding": {"dim": 3},
        "filters": [[1, 4], [2, 2]],
        "n_highway": 2,
        "n_characters": 262,
        "max_characters_per_token": 8,
        "activation": "relu",
    },
}


class Options:
    """An options.json to be changed before it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings: dict[str, Any] = json.loads(json.dumps(OPTIONS))

    def read(self, vocabulary: Path | None = None) -> Any:
        self.path.write_text(json.dumps(self.settings), encoding="utf8")
        return read_options(self.path, "zero", vocabulary)

    def assert_refused(self, code: str, *parts: str, vocabulary: Path | None = None) -> None:
        with pytest.raises(WeightsError) as caught:
            self.read(vocabulary)
        assert str(caught.value).startswith(f"[ELMO-{code}]"), caught.value
        for part in parts:
            assert part in str(caught.value)


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(tmp_path / "options.json")


def test_released_form(options: Options) -> None:
    read = options.read()
    assert read.config == CONFIG
    assert read.vocabularies == {} and not read.shares_table
    assert read.notes == ["Settings of training and of older versions were ignored: char_cnn.n_characters."]


@pytest.mark.parametrize("absent", ["left out", "null"])
def test_settings_left_out_have_the_defaults_of_bilm_tf(options: Options, absent: str) -> None:
    names = {"lstm": ["n_layers", "use_skip_connections", "cell_clip", "proj_clip"], "char_cnn": ["n_highway"]}
    for section, settings in names.items():
        for name in settings:
            options.settings[section][name] = None
            if absent == "left out":
                del options.settings[section][name]
    read = options.read()
    changes = {"n_layers": 1, "skip_connections": False, "cell_clip": None, "projection_clip": None, "n_highway": 0}
    assert read.config == replace(CONFIG, **changes)
    assert read.notes[:5] == [
        "lstm.n_layers is not given: 1 was assumed, as bilm-tf does.",
        "lstm.use_skip_connections is not given: false was assumed, as bilm-tf does.",
        "lstm.cell_clip is not given: null was assumed, as bilm-tf does.",
        "lstm.proj_clip is not given: null was assumed, as bilm-tf does.",
        "char_cnn.n_highway is not given: 0 was assumed, as bilm-tf does.",
    ]


@pytest.mark.filterwarnings("error")
def test_settings_of_training_and_legacy_keys_change_nothing(options: Options) -> None:
    training: dict[str, Any] = {"dropout": 0.1, "all_clip_norm_val": 10.0, "n_epochs": 10, "batch_size": 128}
    training.update(n_train_tokens=768648884, n_tokens_vocab=793471, unroll_steps=20)
    training.update(n_negative_samples_batch=8192, learning_rate=0.2, sample_softmax=True)
    options.settings.update(training, bidirectional=True, share_embedding_softmax=False)
    options.settings["lstm"]["reverse"] = False
    options.settings["char_cnn"].update(projection_after_highway=True, n_characters=261)
    read = options.read()
    assert read.config == CONFIG
    assert len(read.notes) == 1
    for name in (*training, "lstm.reverse", "char_cnn.projection_after_highway", "char_cnn.n_characters"):
        assert name in read.notes[0]


def test_number_of_characters_may_be_absent(options: Options) -> None:
    del options.settings["char_cnn"]["n_characters"]
    read = options.read()
    assert read.config == CONFIG and read.notes == []


def test_unknown_settings_are_warned_of_and_noted(options: Options) -> None:
    options.settings["char_cnn"]["projection"] = {"dim": 7}
    options.settings["clip_grad_norm"] = 5.0
    with pytest.warns(ElmoWarning, match=r"W120.*clip_grad_norm.*char_cnn\.projection"):
        read = options.read()
    assert read.config == CONFIG
    assert read.notes[-1] == "Settings that are not known were ignored: clip_grad_norm, char_cnn.projection."


def test_byte_order_mark(options: Options) -> None:
    options.path.write_bytes(b"\xef\xbb\xbf" + json.dumps(OPTIONS).encode())
    assert read_options(options.path, "zero", None).config == CONFIG


# What is refused.


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"",
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"lstm": ' + b"1" * 5000 + b"}",
        json.dumps(OPTIONS).encode() + b" " * 2**20,
    ],
    ids=["cut", "empty", "bytes", "deep", "digits", "large"],
)
def test_invalid_json(options: Options, content: bytes) -> None:
    options.path.write_bytes(content)
    with pytest.raises(WeightsError, match="E121") as caught:
        read_options(options.path, "zero", None)
    assert str(options.path) in str(caught.value)


@pytest.mark.parametrize(
    ("section", "name", "value", "code", "part"),
    [
        (None, "lstm", None, "E122", "'lstm'"),
        (None, "char_cnn", [1], "E122", "'char_cnn'"),
        ("char_cnn", "embedding", 16, "E122", "'char_cnn.embedding'"),
        (None, "bidirectional", False, "E124", "False"),
        ("lstm", "dim", "64", "E125", "lstm.dim"),
        ("lstm", "dim", None, "E125", "'cells'"),
        ("lstm", "dim", 10**12, "E125", "'cells'"),
        ("lstm", "projection_dim", None, "E125", "'projection'"),
        ("lstm", "n_layers", 0, "E125", "'n_layers'"),
        ("lstm", "use_skip_connections", "yes", "E125", "'skip_connections'"),
        ("lstm", "cell_clip", 0, "E125", "'cell_clip'"),
        ("lstm", "proj_clip", float("nan"), "E125", "'projection_clip'"),
        ("char_cnn", "filters", None, "E125", "'filters'"),
        ("char_cnn", "filters", [[9, 1]], "E125", "'filters'"),
        ("char_cnn", "filters", [4], "E125", "'filters'"),
        ("char_cnn", "activation", "gelu", "E125", "gelu"),
        ("char_cnn", "activation", ["relu"], "E125", "'activation'"),
        ("char_cnn", "activation", None, "E125", "'activation'"),
        ("char_cnn", "max_characters_per_token", None, "E125", "'max_characters'"),
        ("char_cnn", "embedding", {}, "E125", "'character_dim'"),
    ],
)
def test_options_that_describe_no_bilm(
    options: Options, section: str | None, name: str, value: object, code: str, part: str
) -> None:
    (options.settings[section] if section else options.settings)[name] = value
    options.assert_refused(code, str(options.path), part)


def test_options_that_are_no_object(options: Options) -> None:
    options.path.write_text("[]", encoding="utf8")
    with pytest.raises(WeightsError, match="E122.*top level"):
        read_options(options.path, "zero", None)


def test_unknown_initial_state(options: Options) -> None:
    """An error of the caller, not of the file."""
    with pytest.raises(ConfigError, match="E001.*warm") as caught:
        read_options(options.path, "warm", None)  # type: ignore[arg-type]
    assert not isinstance(caught.value, WeightsError)


# Tables of words.


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocabulary.txt"
    path.write_text("<S>\n</S>\n<UNK>\nThe\n", encoding="utf8")
    return path


def test_table_of_words(options: Options, vocabulary: Path) -> None:
    del options.settings["char_cnn"]
    options.settings.update(n_tokens_vocab=4, share_embedding_softmax=True)
    read = options.read(vocabulary)
    assert read.config == BiLMConfig(token_encoder="words", n_words=4, projection=5, cells=6)
    assert read.vocabularies == {"words": ["<S>", "</S>", "<UNK>", "The"]}
    assert read.shares_table
    assert len(read.notes) == 1 and "n_tokens_vocab" in read.notes[0]


def test_table_of_words_without_a_vocabulary(options: Options) -> None:
    del options.settings["char_cnn"]
    options.assert_refused("E123", str(options.path), "vocabulary_path")


def test_table_of_words_without_a_row_for_unknown_words_says_so(options: Options, vocabulary: Path) -> None:
    del options.settings["char_cnn"]
    vocabulary.write_text("<S>\n</S>\nThe\n", encoding="utf8")
    assert "'<UNK>'" in options.read(vocabulary).notes[-1]


@pytest.mark.parametrize("words", ["<S>\n<UNK>\nThe\n", "<S>\n</S>\nThe\nThe\n", ""], ids=["end", "twice", "empty"])
def test_vocabulary_that_no_table_can_have(options: Options, vocabulary: Path, words: str) -> None:
    del options.settings["char_cnn"]
    vocabulary.write_text(words, encoding="utf8")
    options.assert_refused("E140", str(vocabulary), vocabulary=vocabulary)


def test_characters_need_no_vocabulary_and_do_not_share_the_softmax(options: Options, vocabulary: Path) -> None:
    options.settings["share_embedding_softmax"] = True
    read = options.read(vocabulary)
    assert read.config == CONFIG and read.vocabularies == {} and not read.shares_table
    assert read.notes[-1].startswith("The vocabulary is not needed")


# What is written.


@pytest.mark.parametrize(
    "config",
    [CONFIG, replace(CONFIG, cell_clip=None, projection_clip=2.5, activation="tanh", n_highway=0), BiLMConfig()],
)
def test_what_is_written_is_read_back(options: Options, config: BiLMConfig) -> None:
    options.settings = options_of(config)
    assert options.settings["char_cnn"]["n_characters"] == 262
    assert options.read().config == config


def test_table_of_words_is_written_and_read_back(options: Options, vocabulary: Path) -> None:
    config = BiLMConfig(token_encoder="words", n_words=4, projection=5, cells=6)
    options.settings = options_of(config)
    assert options.settings["n_tokens_vocab"] == 4
    assert options.read(vocabulary).config == config


def test_words_beside_characters_cannot_be_said() -> None:
    config = BiLMConfig(token_encoder="words_and_characters", n_words=9, word_dim=2, n_characters=9)
    with pytest.raises(WeightsError, match="E135"):
        options_of(config)
