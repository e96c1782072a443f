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
    E100 = "There is no file '{name}' in {directory} (there: {there}). Pass a directory that save_bilm or pretraining wrote."
    E101 = "{path} is broken or no weights of spacy-elmo: {detail}. Restore the file or write it again."
    E102 = "{path} does not fit its config.json ({problems}). Restore the file that belongs to it."
    E103 = "{path} holds values that are not finite in '{name}'. Restore the file or train again."
    E104 = "{path} has format {found!r}, but this version of spacy-elmo knows format {known}. Update spacy-elmo."
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
        "{path} describes a forward-only language model ('bidirectional' is {found}). Only bidirectional ones can be "
        "read."
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
    E200 = "Nothing to read at '{source}'. Give a file, a directory with {suffixes} files, or a glob pattern in quotes."
    E201 = "{path} cannot be read beyond line {line}: {detail}. Restore the file or leave it out."
    E202 = "{path}, line {line}, is not UTF-8 ({detail}). Convert the file to UTF-8 or leave it out."
    E203 = "There is no sentence to read in {shards}. Give text with one sentence a line, words separated by spaces."
    E204 = (
        "This is no vocabulary: it must begin with {specials} but begins with {found}, and no word may occur twice "
        "(repeated: {repeated!r}). Let pretraining build it, or correct the file."
    )
    E210 = "The checkpoint {path} cannot be written: {detail}. Earlier checkpoints are untouched: make room and resume."
    E211 = "None of the checkpoints in {directory} can be read: {names}. Delete them to begin anew."
    E212 = "{directory} holds a training run or a finished model already. Resume the run, or give another directory."
    E213 = (
        "The run in {directory} has other settings (setting: (there, here)): {changed}. Resume it with the same settings, "
        "or give another directory."
    )
    E214 = (
        "Training diverged: {what} is {value} at step {step}. The checkpoints written so far are good, but going on from them "
        "would diverge again: train in another directory, with a lower peak_rate or without bfloat16."
    )
    E215 = (
        "{path} cannot be written: {detail}. Checkpoints are untouched: make room, or set the permissions, and resume."
    )
    E216 = "Training setting '{name}' is {value!r}, but must be {expected}."

    # layers and pipeline: E300–E399
    E300 = "Setting '{name}' of {owner} is {value!r}, but must be {expected}."
    E301 = (
        "The elmo pipe {name!r} has frozen = false, but it cannot train its biLM: training comes with the listeners "
        "of a later version. Set frozen = true."
    )
    E302 = (
        "The weights of the biLM are needed, but {source} does not exist. Pass a native weights directory "
        "(config.json and model.safetensors) as 'source' of spacy_elmo.BiLM.v1, or load a saved pipeline, which "
        "brings its weights along."
    )
    E303 = (
        "This Doc has no ELMo vectors. Run the elmo pipe on it first: nlp.add_pipe('elmo'), then doc = nlp(text). "
        'They are not kept where store = "none", in a DocBin without store_user_data=True, and in a serialized '
        "span.as_doc() without copy_user_data=True."
    )
    E304 = (
        "Token {index} ({text!r}) has no ELMo vector that is surely its own: the elmo pipe did not see it here, or "
        "Docs were joined so that it could have been in several. Run the elmo pipe on this Doc."
    )
    E305 = (
        'This Doc has ELMo vectors, but not all layers. Set store = "layers" for the elmo pipe and run it on this '
        "Doc; of a span.as_doc() pass copy_user_data=True."
    )
    E306 = (
        "{holder}._.{name} exists already and does not come from spacy-elmo. Give your extension another name, or "
        "remove it with {holder}.remove_extension('{name}') before the elmo pipe is added."
    )
    E307 = (
        "The elmo pipe {name!r} has no labels, so {label!r} cannot be added. Add it to the component that predicts it."
    )
    E308 = (
        "The span getter {getter!r} gave lists of spans for {given} Docs, but there were {expected}. It must give "
        "one list for each Doc, in order; the list may be empty."
    )
    E310 = (
        "The scalar mix has weights for {expected} layers, but the input has {given}. Use a mix with as many layers "
        "as the biLM gives: its LSTM layers and one."
    )

    # cli: E400–E499
    E400 = "The input {path} cannot be read: {detail}. Give a file with a text a line, or - for standard input."
    E401 = "{path}, line {line}, is not UTF-8 ({detail}). Convert the file to UTF-8."
    E402 = (
        '{path}, line {line}, is no JSON object with a "text": {detail}. Correct the line, or pass --no-jsonl where each '
        "line is a text as it stands."
    )
    E403 = (
        "{path}, line {line}, has {length:,} characters, more than the {limit:,} that the pipeline takes (nlp.max_length). "
        "Split the line."
    )
    E404 = "The output {path} ends in {suffix!r}, which says no format. Give it one of the suffixes {known}."
    E405 = "Writing {path} needs h5py, which is not installed. Install it with pip install 'spacy-elmo[hdf5]', or write .npz."
    E406 = "{path} cannot be written: {detail}. What was there before is untouched: make room, or choose another place."
    E407 = (
        "The pipeline {model!r} has no elmo pipe, only {pipes}. Pass one that has, or none to use the embedded weights."
    )
    E408 = "The pipeline {model!r} cannot be loaded: {detail}. Pass the path or the name of a saved spaCy pipeline."
    E410 = (
        "{path} is no config of a training run: {detail}. It must be JSON with an object 'bilm', an object 'training', or "
        "both."
    )
    E411 = "Setting '{name}' of the training run is {value!r}, but must be {expected}."
    E412 = "There is no GPU {gpu_id}: torch sees {there}. Pass --gpu-id -1 to train on the CPU."


class Warnings(metaclass=_Coded):
    """Messages of warnings; fill with `.format(…)`."""

    # pretraining: W200–W299
    W200 = "The checkpoint {path} is broken and passed over: {detail}."
    W201 = "The run was begun on another kind of device, so its dropout goes on with other random numbers on {device}."

    # weights: W100–W199
    W120 = "{path} has settings that are not known here and change nothing: {names}."

    # layers and pipeline: W300–W399
