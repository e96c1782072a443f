"""Short names of public ELMo models, and what is known of them for sure. What is not known is None, never guessed.

Where the facts come from: AI2's list of models (github.com/allenai/allennlp-website, elmo.html), AllenNLP's defaults and
issue 1462, bilm-tf's README and issue 198, the README and issue 64 of ELMoForManyLangs, RusVectores, and the NLPL wiki.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteFile:
    """A file of a model on the web.

    role (str): "options", "weights", "softmax", "vocabulary", "checkpoint" or "archive".
    name (str): What the file is called on disk.
    urls (tuple[str, ...]): Where it lies; the first that answers is taken.
    size (int | None): Bytes, where known.
    sha256 (str | None): Checksum, where known.
    """

    role: str
    name: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class KnownModel:
    """A public model.

    name (str): Its short name.
    about (str): Who made it, of what.
    files (tuple[RemoteFile, ...]): What it consists of.
    language (str | None): ISO 639 code.
    licence (str | None): As its makers state it.
    """

    name: str
    about: str
    files: tuple[RemoteFile, ...]
    language: str | None = None
    licence: str | None = None


_AI2_LICENCE = "none named; AI2 imposes no restrictions on its models (allenai/allennlp issue 1462)"
_MANY_LANGS_LICENCE = "MIT (HIT-SCIR/ELMoForManyLangs issue 64)"
_ONE_BILLION = "1 Billion Word Benchmark, about 800M tokens of news"
_ORIGINAL_BYTES = {"options": 336, "weights": 374_434_792}

# Of the models that the NLPL repository has under these numbers, ELMoForManyLangs made 136–179.
_MANY_LANGS = (
    "ar bg ca cs cu da de el en es et eu fa fi fr ga gl grc he hi hr hu id it ja ko la lv nl nb nn pl pt ro ru sk sl sv "
    "tr ug uk ur vi zh"
).split()
_MANY_LANGS_FIRST = 136
_NLPL: dict[int, tuple[str, str]] = {
    195: ("ru", "RusVectores: Russian National Corpus and Wikipedia, December 2018, tokens"),
    196: ("ru", "RusVectores: Russian National Corpus and Wikipedia, December 2018, lemmas"),
    199: ("ru", "RusVectores: Taiga, December 2019, lemmas"),
    201: ("de", "German, used by UiO-UvA at SemEval-2020 task 1"),
    202: ("sv", "Swedish, used by UiO-UvA at SemEval-2020 task 1"),
    203: ("la", "Latin, used by UiO-UvA at SemEval-2020 task 1"),
    209: ("en", "English, used by UiO-UvA at SemEval-2020 task 1"),
    210: ("no", "NorELMo: Norwegian Wikipedia, September 2020, about 160M words, lemmas"),
    211: ("no", "NorELMo: Norwegian Wikipedia, September 2020, about 160M words, tokens"),
    212: ("ru", "RusVectores: Araneum, 2020, lemmas"),
    217: ("no", "NorELMo30: Norwegian Wikipedia and Norsk Aviskorpus, softmax of 30,000 words"),
    218: ("no", "NorELMo100: Norwegian Wikipedia and Norsk Aviskorpus, softmax of 100,000 words"),
}


def find_known_model(name: str) -> KnownModel | None:
    """Look up a short name.

    name (str): One of `known_names()`, "nlpl:<number>" of the NLPL repository, or "many-langs:<language>".
    RETURNS (KnownModel | None): None for a name that is none of these.
    """
    name = name.lower()
    if match := re.fullmatch(r"nlpl:(\d{1,5})", name):
        return _nlpl(int(match[1]))
    if match := re.fullmatch(r"many-langs:([a-z]{2,3})", name):
        known = match[1] in _MANY_LANGS
        return _nlpl(_MANY_LANGS_FIRST + _MANY_LANGS.index(match[1])) if known else None
    return _MODELS.get(name)


def known_names() -> list[str]:
    """RETURNS (list[str]): All short names; of the NLPL repository those that are known to be ELMo models."""
    return [*_MODELS, *(f"many-langs:{language}" for language in _MANY_LANGS), *(f"nlpl:{number}" for number in _NLPL)]


def _nlpl(number: int) -> KnownModel:
    # The newer release of the catalogue first; entries never change.
    urls = tuple(f"https://vectors.nlpl.eu/repository/{release}/{number}.zip" for release in (20, 11))
    archive = RemoteFile("archive", f"{number}.zip", urls)
    index = number - _MANY_LANGS_FIRST
    if 0 <= index < len(_MANY_LANGS):
        about = "ELMoForManyLangs: 20M words of Wikipedia and Common Crawl, CoNLL 2018 shared task"
        return KnownModel(f"nlpl:{number}", about, (archive,), _MANY_LANGS[index], _MANY_LANGS_LICENCE)
    language, about = _NLPL.get(number, (None, "NLPL repository of word vectors"))
    return KnownModel(f"nlpl:{number}", about, (archive,), language)


def _ai2_urls(path: str) -> tuple[str, ...]:
    """One bucket under the two addresses that it was published with."""
    return (
        f"https://allennlp.s3.amazonaws.com/models/elmo/{path}",
        f"https://s3-us-west-2.amazonaws.com/allennlp/models/elmo/{path}",
    )


def _ai2(
    name: str, path: str, about: str, vocabulary: str | None = None, sizes: dict[str, int] | None = None
) -> KnownModel:
    """One of AI2's own models; where the vocabulary is known, so is the softmax."""
    sizes = sizes or {}
    stem = f"{path}/elmo_{path}"
    files = [
        RemoteFile("options", "options.json", _ai2_urls(f"{stem}_options.json"), sizes.get("options")),
        RemoteFile("weights", "weights.hdf5", _ai2_urls(f"{stem}_weights.hdf5"), sizes.get("weights")),
    ]
    if vocabulary is not None:
        files.append(RemoteFile("softmax", "softmax_weights.hdf5", _ai2_urls(f"{stem}_softmax_weights.hdf5")))
        files.append(RemoteFile("vocabulary", "vocab.txt", _ai2_urls(vocabulary)))
    return KnownModel(name, f"AI2: {about}", tuple(files), "en", _AI2_LICENCE)


def _ai2_checkpoint(name: str, path: str, step: int, about: str) -> KnownModel:
    shards = (f"model.ckpt-{step}.index", f"model.ckpt-{step}.data-00000-of-00001")
    files = [
        RemoteFile("options", "options.json", _ai2_urls(f"{path}/options.json")),
        *(RemoteFile("checkpoint", shard, _ai2_urls(f"{path}/{shard}")) for shard in shards),
        RemoteFile("vocabulary", "vocab.txt", _ai2_urls("vocab-2016-09-10.txt")),
    ]
    return KnownModel(name, f"AI2: {about}", tuple(files), "en", _AI2_LICENCE)


def _pair(
    name: str, about: str, options: tuple[str, ...], weights: tuple[str, ...], language: str, size: int | None = None
) -> KnownModel:
    files = RemoteFile("options", "options.json", options), RemoteFile("weights", "weights.hdf5", weights, size)
    return KnownModel(name, about, files, language)


_MODELS = {
    model.name: model
    for model in (
        _ai2("ai2-small", "2x1024_128_2048cnn_1xhighway", f"13.6M parameters, {_ONE_BILLION}"),
        _ai2("ai2-medium", "2x2048_256_2048cnn_1xhighway", f"28.0M parameters, {_ONE_BILLION}"),
        _ai2(
            "ai2-original",
            "2x4096_512_2048cnn_2xhighway",
            f"93.6M parameters, {_ONE_BILLION}",
            "vocab-2016-09-10.txt",
            _ORIGINAL_BYTES,
        ),
        _ai2(
            "ai2-original-5.5b",
            "2x4096_512_2048cnn_2xhighway_5.5B",
            "93.6M parameters, Wikipedia (1.9B tokens) and news of WMT 2008-2012 (3.6B tokens)",
            "2x4096_512_2048cnn_2xhighway_5.5B/tf_checkpoint/vocab-enwiki-news-500000.txt",
        ),
        _ai2_checkpoint(
            "ai2-original-checkpoint",
            "2x4096_512_2048cnn_2xhighway_tf_checkpoint",
            935588,
            f"the original model's TensorFlow checkpoint with its softmax, {_ONE_BILLION}",
        ),
        _ai2_checkpoint(
            "ai2-medium-checkpoint",
            "2x2048_256_2048cnn_1xhighway/tf_checkpoint",
            1501260,
            f"the medium model's TensorFlow checkpoint with its softmax, {_ONE_BILLION}",
        ),
        _pair(
            "pt-wikipedia",
            "Federal University of Goiás: Portuguese Wikipedia",
            _ai2_urls("contributed/pt/wikipedia/options.json"),
            _ai2_urls("contributed/pt/wikipedia/elmo_pt_weights.hdf5"),
            "pt",
        ),
        _pair(
            "pt-brwac",
            "Federal University of Goiás: Portuguese web text, brWaC",
            _ai2_urls("contributed/pt/brwac/options.json"),
            _ai2_urls("contributed/pt/brwac/elmo_pt_weights_dgx1.hdf5"),
            "pt",
        ),
        _pair(
            "ja-exawizards",
            "ExaWizards: Japanese",
            ("https://exawizardsallenlp.blob.core.windows.net/data/options.json",),
            ("https://exawizardsallenlp.blob.core.windows.net/data/weights.hdf5",),
            "ja",
        ),
        _pair(
            "pubmed",
            "Matthew Peters: PubMed",
            _ai2_urls("contributed/pubmed/elmo_2x4096_512_2048cnn_2xhighway_options.json"),
            _ai2_urls("contributed/pubmed/elmo_2x4096_512_2048cnn_2xhighway_weights_PubMed_only.hdf5"),
            "en",
            _ORIGINAL_BYTES["weights"],
        ),
    )
}
