"""The catalogue of what can go wrong: a code, what happened, the offending value, what to do.

    ElmoError(ValueError)
    ├── ConfigError      a setting that cannot be
    ├── WeightsError     weights that are missing, broken or do not fit
    ├── CorpusError      text that cannot be trained on
    ├── TrainingError    a training run that cannot start, go on or be resumed
    └── PipelineError    a spaCy pipeline, Doc or annotation in a state that cannot be served
"""

from __future__ import annotations


class ElmoError(ValueError):
    """Base of every error that spacy-elmo raises on purpose."""


class ConfigError(ElmoError):
    """A setting that cannot be."""


class WeightsError(ElmoError):
    """Weights that are missing, broken or do not fit."""


class CorpusError(ElmoError):
    """Text that cannot be trained on."""


class TrainingError(ElmoError):
    """A training run that cannot start, go on or be resumed."""


class PipelineError(ElmoError):
    """A spaCy pipeline, Doc or annotation in a state that cannot be served."""


class ElmoWarning(UserWarning):
    """Something that the user should know, though the result is defined."""


class _Coded(type):
    """Prefix every message of the catalogue with its code: `Errors.E001` reads "[ELMO-E001] …"."""

    def __getattribute__(cls, name: str) -> str:
        value = super().__getattribute__(name)
        if not name.startswith("_") and isinstance(value, str):
            return f"[ELMO-{name}] {value}"
        return value  # type: ignore[no-any-return]


class Errors(metaclass=_Coded):
    """Messages of errors; fill with `.format(…)`. One hundred codes a room."""

    # lm: E001–E099
    E001 = "Setting '{name}' of the biLM is {value!r}, but must be {expected}."
    E002 = "The biLM's config has unknown settings {names}. Known settings: {known}."
    E003 = "Sentence {index} is a plain string ({text!r}), but must be a list of words. Split it into words first."
    E004 = "Word {position} of sentence {index} is {value!r} of type {type}, but must be a string."
    E005 = (
        "The state given has a part of shape {given}, but this biLM needs {expected} (directions, layers, sentences, size). "
        "Pass the state that came out of this biLM, or None to start anew."
    )

    # weights: E100–E199
    E120 = "The file {path} cannot be read: {problem}. Check the path and its permissions."
    E121 = "{path} is no valid JSON: {problem}. Pass the options.json that belongs to the weights."
    E122 = (
        "{path} has no usable '{key}': found {found}, expected {expected}. Pass the options.json that belongs to the "
        "weights; it has an object 'lstm' and an object 'char_cnn'."
    )
    E123 = (
        "{path} has no 'char_cnn', so it describes a biLM over a table of whole words. Only biLMs over characters can "
        "be read; pass a model with 'char_cnn' in its options.json."
    )
    E124 = (
        "{path} describes a forward-only language model ('bidirectional' is {found}). Only bidirectional ones can be read."
    )
    E125 = (
        "{path} describes a biLM that cannot be. {problem} (In options.json 'cells' is lstm.dim, 'projection' is "
        "lstm.projection_dim, 'projection_clip' is lstm.proj_clip, 'character_dim' is char_cnn.embedding.dim, "
        "'max_characters' is char_cnn.max_characters_per_token.)"
    )
    E126 = "Reading {path} needs h5py, which is not installed. Install it with: pip install 'spacy-elmo[hdf5]'"
    E127 = "{path} is no hdf5 file or is damaged: {problem}. Fetch it again."
    E128 = (
        "{path} has no dataset '{name}', which its options.json calls for. Pass the options.json and the hdf5 file of "
        "one and the same model."
    )
    E129 = (
        "Dataset '{name}' in {path} has shape {found}, but its options.json calls for {expected}. Pass the "
        "options.json and the hdf5 file of one and the same model."
    )
    E130 = "'{name}' in {path} is {found}, but must be a plain dataset of floats within this file. It is not read."
    E131 = (
        "{path} has datasets that its options.json does not call for: {names}. Pass the options.json and the hdf5 "
        "file of one and the same model."
    )
    E132 = "Dataset '{name}' in {path} holds values that are not finite in float32. Fetch the file again."

    # pretraining: E200–E299

    # layers and pipeline: E300–E399

    # cli: E400–E499


class Warnings(metaclass=_Coded):
    """Messages of warnings; fill with `.format(…)`."""

    # weights: W100–W199
    W120 = "{path} has settings that are not known here and change nothing: {names}."

    # layers and pipeline: W300–W399
