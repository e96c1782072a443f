"""The catalogue of what can go wrong: a code, what happened, the offending value, what to do.

ElmoError(ValueError)
├── ConfigError      a setting that cannot be
├── WeightsError     weights that are missing, broken or do not fit
├── CorpusError      text that cannot be trained on
├── TrainingError    a training run that cannot start, go on or be resumed
└── PipelineError    a spaCy pipeline, Doc or annotation in a state that cannot be served
"""

from __future__ import annotations

from textwrap import shorten

_DETAIL_CHARACTERS = 300


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


def detail_of(error: BaseException) -> str:
    """What an error of another library says, as a part of a sentence of ours.

    error (BaseException): The error.
    RETURNS (str): One line, not too long, of printable characters, without a full stop at its end.
    """
    line = one_line(getattr(error, "strerror", None) or str(error)).rstrip(". ")
    # A KeyError says no more than the key, and some say nothing.
    return line if " " in line else f"{type(error).__name__}: {line}".rstrip(": ")


def one_line(text: str) -> str:
    """RETURNS (str): Text that may come from a hostile file, fit for a terminal: one line, not too long, of printable characters."""
    line = shorten(text, _DETAIL_CHARACTERS, placeholder=" …")
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)


def shown(value: object) -> str:
    """RETURNS (str): A value that may come from a hostile file, as Python writes it, but not too long."""
    text = repr(value)
    return text if len(text) <= _DETAIL_CHARACTERS else f"{text[:_DETAIL_CHARACTERS]} …"


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
    E001 = "Setting '{name}' is {value!r}, but must be {expected}."
    E002 = "The biLM's config has unknown settings {names}. Known settings: {known}."
    E003 = "Sentence {index} is a plain string ({text!r}), but must be a list of words. Split it into words first."
    E004 = "Word {position} of sentence {index} is {value!r} of type {type}, but must be a string."
    E005 = (
        "The state given has a part of shape {given}, but this biLM needs {expected} (directions, layers, sentences, size). "
        "Pass the state that came out of this biLM, or None to start anew."
    )
    E006 = (
        "The token encoder {encoder!r} looks up the vocabularies {expected}, but was given {given}. Pass exactly those that "
        "it looks up to BiLM."
    )
    E007 = (
        "The vocabulary of {name} has {found} entries, but its table has {expected} rows. Pass the vocabulary that belongs to "
        "the weights."
    )
    E008 = (
        "The vocabulary of {name} has {entry}, but must be strings of which no two are the same. Pass the vocabulary that "
        "belongs to the weights."
    )
    E009 = (
        "The vocabulary of {name} has no entry {missing}, which the token encoder needs. Pass the vocabulary that belongs to "
        "the weights."
    )
    E020 = (
        "The recurrence 'fused' is torch's own LSTM, which cannot clip, but this biLM has cell_clip={cell_clip} and "
        "projection_clip={projection_clip}, {cells} cells and projection {projection}. Use 'steps', or train a biLM without "
        "clips whose projection is not wider than its cells."
    )
    E021 = (
        "The output head is tied to vectors of words, but was not told where to get them. Call "
        "head.bind(VocabularyEncoder(bilm, words)), or load the model together with its vocabulary."
    )
    E022 = "The output head draws words by their counts, but does not know them. Call head.set_counts(counts) first."
    E023 = (
        "Counts of words are of shape {found}, but must be {expected} numbers from 0 up, not all of them 0. Pass one for "
        "each word of the vocabulary, in its order."
    )
    E024 = (
        "The output head cannot be trained within head.prepared(), where its weights are computed once. Train before or "
        "after the 'with' block."
    )
    E025 = "The recurrence 'compiled' is made for a CPU, but the biLM is on {device}. Use 'steps', or 'fused' if it has no clips."
    E026 = (
        "The recurrence 'compiled' needs numba, which cannot be used here: {problem}. Install it with `pip install numba`, or use "
        "'steps', which computes the same."
    )

    # weights: E100–E199
    E100 = (
        "{directory} is no directory with a file '{name}' (there: {there}). Pass one in which '{name}' is a file, as "
        "save_bilm and pretraining write it."
    )
    E101 = "{path} is broken or no weights of spacy-elmo ({detail}). Restore the file or write it again."
    E102 = "{path} does not fit its config.json ({problems}). Restore the file that belongs to it."
    E103 = "{path} holds values that are not finite in '{name}'. Restore the file or train again."
    E104 = "{path} has format {found}, but this version of spacy-elmo knows format {known}. Update spacy-elmo."
    E120 = "The file {path} cannot be read: {problem}. Check the path and its permissions."
    E121 = "{path} is no valid JSON: {problem}. Pass the options.json that belongs to the weights."
    E122 = (
        "{path} has no usable '{key}': found {found}, expected {expected}. Pass the options.json that belongs to the "
        "weights; it has an object 'lstm' and an object 'char_cnn'."
    )
    E123 = (
        "{path} has no 'char_cnn', so it describes a biLM over a table of whole words, which needs its vocabulary. Pass "
        "the file with a word a line that it was trained with (vocabulary_path)."
    )
    E124 = (
        "{path} describes a forward-only language model ('bidirectional' is {found}). Only bidirectional ones can be "
        "read."
    )
    E125 = (
        "{path} describes a biLM that cannot be. {problem}. (In options.json 'cells' is lstm.dim, 'projection' is "
        "lstm.projection_dim, 'projection_clip' is lstm.proj_clip, 'character_dim' is char_cnn.embedding.dim, "
        "'max_characters' is char_cnn.max_characters_per_token.)"
    )
    E126 = "{path} needs h5py, which is not installed. Install it with: pip install 'spacy-elmo[hdf5]'"
    E127 = "{path} is no hdf5 file or is damaged: {problem}. Fetch it again."
    E128 = (
        "{path} has no '{name}', which its options.json calls for. Pass the options.json and the weights of one and the "
        "same model."
    )
    E129 = (
        "'{name}' in {path} has shape {found}, but its options.json calls for {expected}. Pass the options.json and the "
        "weights of one and the same model."
    )
    E130 = "'{name}' in {path} is {found}, but must be plain floats within this file. It is not read."
    E131 = (
        "{path} has weights that its options.json does not call for: {names}. Pass the options.json and the weights of "
        "one and the same model."
    )
    E132 = "'{name}' in {path} holds values that are not finite in float32. Fetch the file again."
    E133 = (
        "The weights that options.json calls for take {declared} bytes, but {path} has only {size}. Pass the options.json "
        "and the weights of one and the same model."
    )
    E134 = (
        "The output head {found} has no place in bilm-tf's format, which holds a full softmax of width {projection}. "
        "Write the model without its head (on the command line: --no-softmax)."
    )
    E135 = (
        "The biLM reads words and characters together (ELMoForManyLangs), which bilm-tf's format cannot say. Write it in "
        "the native format."
    )
    E136 = (
        "'{name}' holds values that are not finite in float32, so nothing is written. Restore the model or train again."
    )
    E138 = (
        "There is no complete TensorFlow checkpoint {prefix}: {problem}. Pass what stands before '.index', with "
        "'.data-00000-of-00001' or more of them beside it, as the Saver of TensorFlow 1.0 and later writes them."
    )
    E139 = "{path} is no part of a TensorFlow checkpoint or is damaged: {problem}. Fetch it again."
    E140 = "{path} is no vocabulary of bilm-tf: {problem}. Pass a UTF-8 file with a word a line, as trained with."
    E141 = "The word {word!r} cannot stand on a line of its own in a vocabulary file. Write the model in the native format."
    E142 = (
        "The vocabulary has {found} words, but the table of words in {path} has {expected} rows. Pass the vocabulary that "
        "the model was trained with."
    )
    E150 = (
        "{path} has no usable file '{name}' ({problem}). Pass the directory of a model of ELMoForManyLangs with all that came "
        "in it: config.json, word.dic, char.dic, token_embedder.pkl, encoder.pkl."
    )
    E151 = (
        "{path} does not describe a model of ELMoForManyLangs: {problem}. Restore the file that came with the weights, as it "
        "was."
    )
    E152 = (
        "{path} names the architecture {name!r}, which is not beside it. Put the file of that name there; it came with the "
        "program that trained the model."
    )
    E153 = (
        "{path} describes a model that cannot be read: {problem}. Only those of ELMoForManyLangs that have words and characters "
        "('word_dim', 'char_dim') through convolutions ('cnn') under projected LSTMs ('elmo') can be."
    )
    E154 = "{path}, line {line}: {problem}. Restore the dictionary that came with the model's weights."
    E155 = "{path} has a dictionary that does not fit: {problem} Restore the one that came with the model's weights."
    E156 = (
        "{path} is damaged or holds more than tensors, and is not read: {problem}. Fetch it again; if it was written by "
        "torch.save, save a state_dict."
    )
    E157 = (
        "The weights in {path} have {found} as '{name}', but the architecture calls for the shape {expected}. Restore the "
        "files of one and the same model."
    )
    E158 = (
        "The weights in {path} have tensors that the architecture does not call for: {names}. Restore the files of one and the "
        "same model."
    )
    E159 = "The weights in {path} hold values that are not finite in '{name}'. Fetch them again."
    E160 = (
        "{name} is not here, and nothing may be downloaded: offline is asked for (by argument or SPACY_ELMO_OFFLINE). "
        "Fetch {urls} where there is a network and put it at {path}, or pass a local directory or file."
    )
    E161 = "{url} is not followed: {problem}. Give an address that begins with https:// or http://, or a local file."
    E162 = (
        "{name} cannot be downloaded: {problems}. Try again later, or fetch it by other means and pass the local file."
    )
    E163 = (
        "What {url} sends is not taken: {problem}. Nothing was kept. Try again later, or fetch the file by other means "
        "and pass the local file."
    )
    E164 = (
        "{url} has sha256 {found}, but must have {expected}. Nothing was kept: the file was changed or damaged. Pass the "
        "checksum of the file that you mean, or another source."
    )
    E165 = "{path} cannot be written: {problem}. Make room, or set SPACY_ELMO_CACHE to a directory for downloads."
    E166 = "{path} is no zip file, or a damaged one: {problem}. Fetch it again."
    E167 = (
        "The zip file {path} is not opened: {problem}. Zip files of ELMo models hold plain files at their root. Unpack it "
        "yourself if you trust it, and pass the directory."
    )
    E170 = (
        "There is no source {source}: no such file or directory, no short name{close} and no http(s) address. Pass a "
        "directory, a zip file, the pair 'options.json::weights.hdf5', an address of these, or a short name: {names}."
    )
    E171 = (
        "{path} holds no ELMo model that can be read (there: {there}). A directory or zip file must hold config.json and "
        "model.safetensors (spacy-elmo), options.json and an hdf5 file (bilm-tf, AllenNLP, NLPL), options.json and "
        "model.ckpt-… (a TensorFlow checkpoint of bilm-tf), or encoder.pkl and its company (ELMoForManyLangs)."
    )
    E172 = (
        "{path} is {kind}, which cannot be read. Pass a directory, a zip file, an options.json with its hdf5 file as "
        "'options.json::weights.hdf5', or the prefix of a TensorFlow checkpoint of bilm-tf.{hint}"
    )
    E173 = "{path} has several files that could be the {role}: {names}. Pass the pair as 'options.json::weights.hdf5'."
    E174 = "{path} has no {role} ({there}). {advice}"
    E175 = (
        "{path} belongs to {what}. That is another model than the LSTM of ELMo, and is not read here. Pass weights of ELMo "
        "proper: options.json and an hdf5 file."
    )
    E176 = (
        "{path} says that this is a model of {algorithm}, not ELMo. Pass the number of an ELMo model of the repository."
    )
    E177 = "{source} is no pair: it has {count} parts. Pass 'options.json::weights.hdf5', two paths or two addresses."
    E178 = (
        "{path} has {found:,} words, but the softmax has {expected:,}. Put the vocabulary that the model was trained with in "
        "its place, or load the model without its softmax."
    )
    E179 = "{path} cannot be written: {problem}. Make room, or choose another place."
    E180 = "There is no format {format!r} to write. Choose one of {known}."

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
        "The run in {directory} was begun with other settings or on other text (what: (there, here)): {changed}. Resume it with "
        "the same, or give another directory."
    )
    E214 = (
        "Training diverged: {what} is {value} at step {step}. The checkpoints written so far are good, but going on from them "
        "would diverge again: train in another directory, with a lower peak_rate or in float32."
    )
    E215 = (
        "{path} cannot be written: {detail}. Checkpoints are untouched: make room, or set the permissions, and resume."
    )
    E216 = "Training setting '{name}' is {value!r}, but must be {expected}."
    E217 = "{directory} holds text ({name}), and the files of the run would mix with it. Give a directory of its own as output."
    E218 = "{path} is a file or lies below one, but the output of a run is a directory. Give another path."
    E219 = "Another run is at work in {directory}: {holder}. Wait for its end, or give another directory."
    E220 = (
        "Training {parameters:,} parameters takes at least {needed:.1f} GiB (weights, gradients and the optimizer's two "
        "moments), but {device} has {there:.1f} GiB. Make the biLM smaller."
    )
    E221 = "There are no training settings {names}. Known settings: {known}."
    E222 = "Only biLMs over characters can be trained, but 'token_encoder' is {encoder!r}. Leave it at 'characters'."
    E240 = "Reading {path} needs zstandard, which is not installed. Install it with pip install 'spacy-elmo[zst]'."
    E241 = (
        "{path} is no text: there are NUL bytes at its start, as in binary files and in UTF-16. Convert the file to UTF-8 or "
        "leave it out."
    )
    E242 = (
        '{path}, line {line}, is no JSON object with a list of strings "tokens": {detail}. Correct or remove the line.'
    )
    E243 = (
        '{path}, line {line}, has a "text" and no "tokens", and only spaCy can split it. Split the text first: python -m '
        "spacy elmo pretrain --tokenizer en …, or python -m spacy elmo tokenize {quoted_path} DIRECTORY --tokenizer en, and read the "
        'directory. Or give lines such as {{"tokens": ["two", "words"]}}.'
    )
    E245 = (
        "{path} is no longer what it was when it was first read: the file was replaced or written to meanwhile. Restore it and "
        "resume, or begin anew."
    )
    E246 = "Text cannot be kept in {path}: {detail}. There is no such file now: make room, or choose another place."
    E247 = (
        "No word is left for the vocabulary: the most frequent of {types:,} occurs {count:,} times, but min_count is {min_count:,} "
        "and vocabulary_size {size:,}, of which {specials} are special. Lower the one or raise the other."
    )
    E248 = "{path} is no vocabulary: entry {number} is {word}, but must be one word. Correct the file."
    E260 = (
        "Of the ways to train (precision and recurrence) none can be chosen: {problem}. Choose both yourself in the training "
        "settings."
    )
    E261 = "There are no ways to train by the names {unknown}. Known: {known}."
    E270 = "The {world} processes of the run cannot meet: {detail}. Start them with torchrun."
    E271 = (
        "The text in {shards} … does not fill one window of {unroll} words for each of {streams} streams. Give more text, a "
        "smaller batch_words, or the objective 'sentences'."
    )
    E272 = (
        "The run reads {parts} parts of the text at each step, which {processes} processes cannot share. Start no more "
        "processes than parts, or begin another run with more parts."
    )
    E275 = (
        "Process {rank} of {world} has lost the others: {detail}. The first message of theirs says why one ended; go on from the "
        "newest checkpoint with --resume."
    )
    E276 = (
        "By step {step} the weights are no longer the same in all processes, so that going on makes no sense: a computer is "
        "faulty, or they differ in more than speed. Go on from the newest checkpoint with --resume, on computers of one kind."
    )
    E277 = (
        "Process {rank} cannot read {path}, from which process 0 goes on. The output directory must lie where all computers of "
        "the run see it."
    )
    E265 = (
        "There is no tracker {name!r}. Choose from {known}, or add yours to spacy_elmo.pretraining.trackers.TRACKERS."
    )
    E266 = (
        "The tracker needs {package}, which cannot be imported ({detail}). Install it with pip install 'spacy-elmo[{package}]', or "
        "leave the tracker out: metrics.jsonl is written anyway."
    )
    E267 = "The tracker {name!r} cannot begin ({detail}). Correct its settings, or leave it out: metrics.jsonl is written anyway."

    E286 = (
        "The settings {names} describe an output head, but --init-from {source} brings one of its own ({head}). Leave them out; or "
        "give it new words by --vocabulary, or take its head away by: python -m spacy elmo convert --no-softmax."
    )
    E287 = "The run in {directory} was not begun from a model. Resume it without --init-from, or give another directory as output."
    E288 = "There is no standard input to read. Give text as files, directories or glob patterns."

    # layers and pipeline: E300–E399
    E300 = "Setting '{name}' of {owner} is {value!r}, but must be {expected}."
    E302 = "The model that comes with spacy-elmo is not at {path}. Install spacy-elmo again, or pass another 'source'."
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
    E311 = (
        "{listener} listens to the elmo pipe {upstream!r}, but no elmo pipe of that name stands before it in the pipeline. Put one "
        "there, or set 'upstream' to the name of one that does, in the config of the listener{section}."
    )
    E312 = (
        "The component {component!r} has learned from {expected_layers} layers of width {expected_width}, but the elmo pipe "
        "{upstream!r} gives {given_layers} of width {given_width}. Give [components.{upstream}.model] the weights with which it "
        "was trained, or train the component anew."
    )
    E313 = (
        "Fine-tuning of {owner} diverged: the norm of its gradient is {value}. Begin anew from the last good weights, with a lower "
        "learning rate ('lr_scale', beside 'frozen = false' in the config) or a bound of the gradient ('max_grad_norm')."
    )
    E314 = (
        "The listeners of one component have different settings ({found}), and spaCy does not say which of them is to be replaced. "
        "Give them the same settings in the config, or replace none."
    )
    E318 = (
        "nlp.replace_listeners was given the path {path!r}, but ElmoListener stands elsewhere in that component's config, and the "
        "pipeline could not be loaded any more. Give the path of the listener itself: {right}."
    )
    E315 = (
        "Layers are to be unfrozen in the component {component!r}, but {problem}. In the block [training.before_update] set "
        "'component' to the name of an elmo pipe, and for that pipe 'frozen = false'."
    )
    E316 = (
        "The training of the component {component!r} diverged: the gradient that it gives to ELMo is not finite. Begin anew from the "
        "last good weights, with a lower learning rate ([training.optimizer]), and look for what is not finite in [components."
        "{component}.model]."
    )
    E340 = (
        "The directory {directory} of the feature cache cannot be made or read: {detail}. Give another directory, or none to "
        "keep features in memory only."
    )
    E350 = (
        "The architecture spacy_elmo.ElmoTok2Vec.v1 has {problem}. Give it an 'elmo_input' or an 'elmo_output' or both, and "
        "with the latter an 'encode', such as spacy.MaxoutWindowEncoder.v2."
    )
    E351 = (
        "The encoder of {owner} takes vectors of width {expected}, but its 'embed' gives {given}. Set "
        "'width' to the same number in the blocks [….tok2vec.embed] and [….tok2vec.encode] of the config."
    )

    E380 = (
        "The mix of ELMo's layers in {owner} is not finite: weights {weights}, gamma {gamma}. Its training diverged, or its file is "
        "damaged: load the last good weights, or train anew with a lower learning rate ([training.optimizer])."
    )
    E370 = (
        "The elmo pipe {name!r} is to tell surprisal (surprisal = true), but its weights cannot: {problem}. Set 'source' in "
        "[components.{name}.model] to weights with their softmax and vocabulary, such as a directory that `python -m spacy elmo "
        "pretrain` wrote, or set surprisal = false."
    )
    E371 = (
        "The elmo pipe {name!r} is to tell surprisal (surprisal = true), but has been given weights without their softmax. Give it "
        "weights that have one by nlp.get_pipe({name!r}).initialize(list, source=…)."
    )
    E372 = (
        "This Doc has no surprisal. Set surprisal = true for the elmo pipe and run it on this Doc. It is not kept in a DocBin "
        "without store_user_data=True, and in a span.as_doc() without copy_user_data=True."
    )
    E373 = (
        "Token {index} ({text!r}) has no surprisal that is surely its own: the elmo pipe did not see it here, or Docs were joined "
        "so that it could have been in several. Run the elmo pipe on this Doc."
    )

    # cli: E400–E499
    E400 = "The input {path} cannot be read: {detail}. Give a file with a text a line, or - for standard input."
    E401 = "{path}, line {line}, is not UTF-8 ({detail}). Convert the file to UTF-8."
    E402 = (
        '{path}, line {line}, is no JSON object with a "text": {detail}. Correct the line, or pass --no-jsonl where '
        "each line is a text as it stands."
    )
    E403 = (
        "{path}, line {line}, has {length:,} characters, more than the {limit:,} that the pipeline takes "
        "(nlp.max_length). Split the line."
    )
    E404 = "The output {path} ends in {suffix!r}, which says no format. Give it one of the suffixes {known}."
    E405 = (
        "Writing {path} needs h5py, which is not installed. Install it with pip install 'spacy-elmo[hdf5]', or write "
        ".npz."
    )
    E406 = "{path} cannot be written: {detail}. What was there before is untouched: make room, or choose another place."
    E407 = (
        "The pipeline {model!r} has no elmo pipe, only {pipes}. Pass one that has, or none to use the embedded weights."
    )
    E408 = "The pipeline {model!r} cannot be loaded ({detail}). Pass the path or the name of a saved spaCy pipeline."
    E410 = (
        "{path} is no config of a training run: {detail}. It must be JSON with an object 'bilm', an object 'training', or "
        "both."
    )
    E411 = "Option --{name} is {value!r}, but must be {expected}."
    E412 = "There is no GPU {gpu_id}: torch sees {there}. Pass --gpu-id -1 to run on the CPU."
    E413 = (
        "The pipeline {model!r} is there, but cannot be loaded ({detail}). Save it again with nlp.to_disk, and install "
        "the packages that its components come from."
    )
    E414 = "GPU {gpu_id} cannot be used ({detail}). Pass --gpu-id -1 to run on the CPU."
    E415 = "No tokenizer can be made for the language {lang!r} ({detail}). Pass the code of another one, such as 'xx'."
    E416 = (
        "The settings {names} describe a biLM, but --init-from {source} brings one of its own. Leave one of them out: a model "
        "keeps its shape."
    )
    E420 = (
        "{path} ends like a file of words that are split already. Pass --plain-text to read it as raw text with a text a line, "
        "or give it to pretrain as it is."
    )
    E421 = (
        "{directory} holds text that was split before, but not from this input ({detail}). Give another directory, or remove "
        "that one if nothing reads it."
    )
    E422 = "{path}, line {line}, cannot be split into sentences and words: {detail}. Correct the line, or take another tokenizer."
    E423 = "There is no sentence in {sources}. Give files with a text on each line."
    E424 = "A process that splits text died, perhaps for want of memory. Pass a smaller --n-process."
    E430 = "{path} {problem}. Give a directory that is new or empty, so that files of two models never stand together."
    E431 = "It is not known what language {source!r} is for. Pass --lang with the code of its language, or --lang xx."
    E450 = "There is a file {path} already. Give another path, or pass --force to write over it."
    E451 = (
        "The component {name!r} cannot be part of the pipeline: {problem}. Name factories of spaCy, or of plugins that are "
        "installed; those that learn from ELMo: {known}."
    )
    E452 = "Nothing in the pipeline {pipeline} learns from ELMo. Name at least one of {known}."
    E453 = "No component of the pipeline {model!r} has a mix of ELMo's layers ({pipes}). Pass one that was trained on ELMo."
    E454 = "Drawing {path} needs matplotlib, which is not installed. Install it with pip install 'spacy-elmo[plots]'."
    E455 = (
        "No picture can be written to {path}: {suffix!r} says no format. Give it a suffix such as .png, .svg or .pdf."
    )
    E456 = (
        "The model {source} cannot tell how likely a word is: {problem}. Pass one with its softmax and vocabulary: a directory "
        "that `python -m spacy elmo pretrain` wrote, or a published model such as ai2-original."
    )
    E457 = "There is no word in {path}. Give text with one sentence a line, words separated by spaces."
    E460 = "{path} cannot be read ({detail}). Pass the directory of a training run, as `python -m spacy elmo pretrain` writes it."
    E470 = "Processes to split text cannot be started ({detail}). Pass a smaller --n-process."
    E481 = "{path} is a saved spaCy pipeline, not weights of ELMo.{advice}"
    E482 = "{path} is a saved spaCy pipeline, which brings its weights along. Pass --model {path} in place of --source."
    E483 = "{model!r} holds weights of ELMo, not a spaCy pipeline. Pass {advice}."
    E484 = "{model!r} is no spaCy pipeline itself, but holds {count}. Pass one of these: {found}."


class Warnings(metaclass=_Coded):
    """Messages of warnings; fill with `.format(…)`."""

    # pretraining: W200–W299
    W200 = "The checkpoint {path} is broken and passed over: {detail}."
    W220 = (
        "The loss leapt to {loss:.3f} by step {step}: the weights of step {good} are back, and training goes on with the text "
        "that comes next, at half the learning rate."
    )
    W210 = (
        "The words of the vocabulary do not fall by frequency in this text: of words and those at twice their rank, {share:.0%} are "
        "the other way round. Sampled softmax draws as if they fell: sort the vocabulary by frequency, or let pretraining build it."
    )
    W227 = (
        "{source} has a softmax, but not its vocabulary, so that it is not known what it predicts: it gets a new softmax, for the "
        "words of the text. Put the vocabulary.txt that it was trained with beside it to keep the softmax."
    )
    W228 = (
        "The run has about {steps:,} steps in all, but its learning rate rises for {warmup:,}: it will learn little. Give it more "
        "--epochs, smaller batches (--batch-words) or fewer --warmup-steps."
    )
    W222 = (
        "At its first step the run finds text in {there} of the {parts} parts that it reads side by side: text is dealt out in blocks "
        "of {lines:,} lines, and there are too few. The step is smaller for it, and processes may have nothing to do: begin with "
        "fewer parts."
    )
    W223 = (
        "The weights of step {step}, the best on the held-out text, are not in {path} any more (step {there}): the last weights "
        "are written in their place."
    )
    W221 = (
        "Until now the LSTMs of the run were compiled. Here they go on step by step, which is slower and may round differently: "
        "{problem}"
    )
    W224 = (
        "torchrun is to begin again up to {restarts} times (--max-restarts) if a process ends, but as it is set up the new "
        "processes may not find each other. Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment."
    )
    W265 = "The tracker {name!r} failed and is left out from now on: {detail}. The metrics.jsonl of the run has it all."

    # weights: W100–W199
    W120 = "{path} has settings that are not known here and change nothing: {names}."
    W150 = (
        "{path} names the architecture {name!r}, which is not beside it. The one that ELMoForManyLangs has under that name is "
        "taken, with which the published models were trained."
    )

    # layers and pipeline: W300–W399
    W300 = (
        "The upstream '*' of a listener in the component {component!r} fits the elmo pipes {first!r} and {second!r}; it listens "
        "to {second!r}. Set 'upstream' to the name of one of them in the config of the listener ([components.{component}.model])."
    )
    W301 = (
        "The component {component!r} was trained on other weights than those of the elmo pipe {upstream!r}, to which it listens "
        "now, so that its predictions mean little. Give [components.{upstream}.model] those weights, or train the component anew."
    )
    W302 = (
        "A listener in the component {component!r} has upstream = {upstream!r}, but that elmo pipe has been renamed to {name!r}. "
        "It still listens, but not when the pipeline is saved and loaded: set 'upstream' in [components.{component}.model]."
    )
    W303 = (
        "The elmo pipe {name!r} reads sentence by sentence where sentences are marked. {setters} marks them when the pipeline is "
        "used, but not in this training, in which each Doc is read as one sequence. Set annotating_components = {setters} in the "
        "block [training] of the config."
    )
    W320 = (
        "{components} listen to the elmo pipe {upstream!r}, which is not in the pipeline: it was removed, or they come from another "
        "one. They still have their layers from it, but not when the pipeline is saved and loaded: put an elmo pipe of that name "
        "before them, or call nlp.replace_listeners before it is removed."
    )
    W340 = (
        "The feature cache cannot write to {directory} and goes on without: {detail}. What is there is used; make room, or set "
        "the permissions, before the next run."
    )
