"""options.json, which says what the weights of bilm-tf and AllenNLP are, to BiLMConfig and back."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ConfigError, ElmoWarning, Errors, Warnings, WeightsError, detail_of, one_line, shown
from ..lm.config import N_CHARACTERS, BiLMConfig, InitialState
from ..lm.word_encoders import Lexicon, WordEncoder
from .bilm_vocabulary import read_words
from .files import read_json

# Settings of training, of TensorFlow's graph, or of what the weights say better: they change nothing here.
_IGNORED = {
    "": {
        "dropout",
        "all_clip_norm_val",
        "n_epochs",
        "n_train_tokens",
        "batch_size",
        "n_tokens_vocab",
        "unroll_steps",
        "n_negative_samples_batch",
        "learning_rate",
        "sample_softmax",
    },
    "lstm": {"reverse"},
    "char_cnn": {"n_characters", "projection_after_highway"},
}
_READ = {
    "": {"lstm", "char_cnn", "bidirectional", "share_embedding_softmax"},
    "lstm": {"dim", "projection_dim", "n_layers", "use_skip_connections", "cell_clip", "proj_clip"},
    "char_cnn": {"embedding", "filters", "max_characters_per_token", "activation", "n_highway"},
}
# What bilm-tf takes where a setting is not given.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "lstm": {"n_layers": 1, "use_skip_connections": False, "cell_clip": None, "proj_clip": None},
    "char_cnn": {"n_highway": 0},
}


class BiLMOptions(NamedTuple):
    """What an options.json says.

    config (BiLMConfig): The biLM.
    vocabularies (dict[str, list[str]]): What the token encoder looks up.
    shares_table (bool): Whether the output head has the table of words as its weight.
    notes (list[str]): Sentences on what was assumed and what was ignored.
    """

    config: BiLMConfig
    vocabularies: dict[str, list[str]]
    shares_table: bool
    notes: list[str]


def read_options(path: Path, initial_state: InitialState, vocabulary_path: Path | None) -> BiLMOptions:
    """Read an options.json.

    path (Path): The file.
    initial_state (str): Where every sentence starts, see BiLMConfig; no options.json says it.
    vocabulary_path (Path | None): The vocabulary, which a biLM over a table of words needs.
    RETURNS (BiLMOptions): What it says.
    RAISES (WeightsError): E120 if a file cannot be read; E121, E122, E124, E125 if it describes no biLM; E123 without the
        vocabulary that it needs, E140 if that is none.
    RAISES (ConfigError): E001 if `initial_state` is unknown.
    """
    BiLMConfig(initial_state=initial_state)
    options = _parse(path)
    if options.get("bidirectional", True) is not True:
        raise WeightsError(Errors.E124.format(path=path, found=shown(options["bidirectional"])))
    _require_object(path, "lstm", options.get("lstm"))
    sections = {"lstm": options["lstm"]}
    if options.get("char_cnn") is not None:
        _require_object(path, "char_cnn", options["char_cnn"])
        _require_object(path, "char_cnn.embedding", options["char_cnn"].get("embedding"))
        sections["char_cnn"] = options["char_cnn"]
    notes = []
    for name, section in sections.items():
        for setting, default in _DEFAULTS[name].items():
            if section.get(setting) is None:
                section[setting] = default
                value = json.dumps(default)
                notes.append(f"{name}.{setting} is not given: {value} was assumed, as bilm-tf does.")
    notes += _ignored(path, {"": options, **sections})
    vocabularies = {}
    if "char_cnn" not in sections:
        if vocabulary_path is None:
            raise WeightsError(Errors.E123.format(path=path))
        vocabularies["words"] = _read_table_words(vocabulary_path)
        if WordEncoder.UNKNOWN not in vocabularies["words"]:
            notes.append(f"The vocabulary has no '{WordEncoder.UNKNOWN}': words that it does not have are zeros.")
    elif vocabulary_path is not None:
        notes.append("The vocabulary is not needed for vectors: this biLM reads the characters of any word.")
    config = _to_config(path, sections, vocabularies, initial_state)
    shares_table = bool(vocabularies) and options.get("share_embedding_softmax") is True
    return BiLMOptions(config, vocabularies, shares_table, notes)


def options_of(config: BiLMConfig) -> dict[str, Any]:
    """What options.json says of a biLM, in the form for use (not for going on with training).

    `n_characters` is 262 then: bilm-tf insists on one more than the table has, and AllenNLP does not ask. The initial
    state has no place in it.

    config (BiLMConfig): The biLM.
    RETURNS (dict): JSON's types.
    RAISES (WeightsError): E135 if its token encoder cannot be said.
    """
    if config.token_encoder == "words_and_characters":
        raise WeightsError(Errors.E135)
    options: dict[str, Any] = {
        "lstm": {
            "use_skip_connections": config.skip_connections,
            "projection_dim": config.projection,
            "cell_clip": config.cell_clip,
            "proj_clip": config.projection_clip,
            "dim": config.cells,
            "n_layers": config.n_layers,
        }
    }
    if config.token_encoder == "words":
        return {**options, "n_tokens_vocab": config.n_words}
    options["char_cnn"] = {
        "activation": config.activation,
        "filters": [list(pair) for pair in config.filters],
        "n_highway": config.n_highway,
        "embedding": {"dim": config.character_dim},
        "n_characters": N_CHARACTERS + 1,
        "max_characters_per_token": config.max_characters,
    }
    return options


def _parse(path: Path) -> dict[str, Any]:
    try:
        options = read_json(path)
    except OSError as error:
        raise WeightsError(Errors.E120.format(path=path, problem=detail_of(error))) from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(Errors.E121.format(path=path, problem=detail_of(error))) from error
    _require_object(path, "top level", options)
    return options  # type: ignore[no-any-return]


def _require_object(path: Path, key: str, found: object) -> None:
    if not isinstance(found, dict):
        raise WeightsError(Errors.E122.format(path=path, key=key, found=shown(found), expected="an object"))


def _ignored(path: Path, sections: dict[str, dict[str, Any]]) -> list[str]:
    """Notes on the settings that change nothing; those that are not known are warned of, too."""
    ignored, unknown = [], []
    for section, settings in sections.items():
        prefix = f"{section}." if section else ""
        others = sorted(set(settings) - _READ[section])
        ignored += [prefix + name for name in others if name in _IGNORED[section]]
        unknown += [prefix + name for name in others if name not in _IGNORED[section]]
    notes = []
    if ignored:
        notes.append(f"Settings of training and of older versions were ignored: {', '.join(ignored)}.")
    if unknown:
        notes.append(f"Settings that are not known were ignored: {one_line(', '.join(unknown))}.")
        warnings.warn(Warnings.W120.format(path=path, names=shown(unknown)), ElmoWarning, stacklevel=4)
    return notes


def _to_config(
    path: Path, sections: dict[str, dict[str, Any]], vocabularies: dict[str, list[str]], initial_state: InitialState
) -> BiLMConfig:
    lstm, char_cnn = sections["lstm"], sections.get("char_cnn")
    settings: dict[str, Any] = {
        "projection": lstm.get("projection_dim"),
        "cells": lstm.get("dim"),
        "n_layers": lstm["n_layers"],
        "skip_connections": lstm["use_skip_connections"],
        "cell_clip": lstm["cell_clip"],
        "projection_clip": lstm["proj_clip"],
    }
    if char_cnn is None:
        settings.update(token_encoder="words", n_words=len(vocabularies["words"]))
    else:
        settings.update(
            character_dim=char_cnn["embedding"].get("dim"),
            filters=char_cnn.get("filters"),
            max_characters=char_cnn.get("max_characters_per_token"),
            activation=char_cnn.get("activation"),
            n_highway=char_cnn["n_highway"],
        )
    try:
        return BiLMConfig(initial_state=initial_state, **settings)
    except ConfigError as error:
        raise WeightsError(Errors.E125.format(path=path, problem=detail_of(error))) from error


def _read_table_words(path: Path) -> list[str]:
    words = read_words(path)
    try:
        Lexicon("words", words, len(words), (WordEncoder.BEGIN, WordEncoder.END))
    except ConfigError as error:
        raise WeightsError(Errors.E140.format(path=path, problem=detail_of(error))) from error
    return words
