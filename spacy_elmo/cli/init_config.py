"""`python -m spacy elmo init-config`: a config in which every trainable component learns from ELMo."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from ..errors import ConfigError, Errors
from . import elmo_cli
from .messages import errors_as_messages
from .output_files import refuse_directory, whole_file
from .pipelines import blank_pipeline

if TYPE_CHECKING:
    from spacy.language import FactoryMeta, Language
    from thinc.api import Config

STANDARD_OUTPUT = "-"

ELMO = "elmo"
SETS_SENTENCES = "token.is_sent_start"


class Optimize(str, Enum):
    """What a pipeline is made for."""

    efficiency = "efficiency"
    accuracy = "accuracy"


class Placement(str, Enum):
    """Where ELMo goes in the network of each component."""

    input = "input"
    output = "output"
    both = "both"


class Encoder(str, Enum):
    """What encodes the tokens of each component."""

    cnn = "cnn"
    bilstm = "bilstm"


LISTENER_DROPOUT = 0.0
"""Of the mixes. The paper's 0.5 is for a biLM 35 times as large as the one that comes with spacy-elmo."""

UNFROZEN_LR_SCALE = 0.1
"""A biLM that trains along takes smaller steps than components that begin anew."""

# Width and depth, for the first as in the configs that spaCy generates.
_ENCODERS = {
    Encoder.cnn: {Optimize.efficiency: (96, 4), Optimize.accuracy: (256, 8)},
    Encoder.bilstm: {Optimize.efficiency: (96, 1), Optimize.accuracy: (256, 2)},
}


@elmo_cli.command("init-config")
def init_config_cli(
    output: Path = typer.Argument(..., help="Config file to write; - for standard output.", allow_dash=True),
    lang: str = typer.Option("en", "--lang", "-l", help="Code of the language."),
    pipeline: str = typer.Option(
        "tagger,parser,ner", "--pipeline", "-p", help="Names of components, separated by commas, without elmo."
    ),
    optimize: Optimize = typer.Option(Optimize.efficiency, "--optimize", "-o", help="What the pipeline is made for."),
    gpu: bool = typer.Option(False, "--gpu", "-G", help="For training on a GPU."),
    placement: Placement = typer.Option(
        Placement.input, help="Where ELMo goes: beside the embeddings, beside what the encoder gives, or both."
    ),
    encoder: Encoder = typer.Option(
        Encoder.cnn, help="Encoder: spaCy's maxout window encoder, or a bidirectional LSTM."
    ),
    width: int = typer.Option(None, min=1, help="Project each mix to this width. Default: the width of the weights."),
    frozen: bool = typer.Option(True, "--frozen/--unfrozen", help="Whether the language model stays as it is."),
    source: str = typer.Option(None, help="Weights. Default: the model that comes with spacy-elmo."),
    vectors: str = typer.Option(None, help="Pipeline with word vectors that are used besides."),
    force: bool = typer.Option(False, "--force", "-F", help="Write over a file that is there."),
) -> None:
    """Write a complete config: each trainable component of the pipeline learns from its own mix of ELMo's layers."""
    to_stdout = str(output) == STANDARD_OUTPUT
    with errors_as_messages():
        if not to_stdout:
            refuse_directory(output)
            if output.exists() and not force:
                raise ConfigError(Errors.E450.format(path=output))
        names = [name.strip() for name in pipeline.split(",") if name.strip()]
        config = init_config(
            lang,
            names,
            optimize=optimize,
            gpu=gpu,
            placement=placement,
            encoder=encoder,
            width=width,
            frozen=frozen,
            source=source,
            vectors=vectors,
        )
        if to_stdout:
            print(config.to_str())
            return
        with whole_file(output) as beside:
            config.to_disk(beside)
    command = f"python -m spacy train {quote(str(output))} --paths.train … --paths.dev …"
    print(f"Wrote {output}. Train with your data: {command}")


def init_config(
    lang: str,
    pipeline: Sequence[str],
    *,
    optimize: str = "efficiency",
    gpu: bool = False,
    placement: str = "input",
    encoder: str = "cnn",
    width: int | None = None,
    frozen: bool = True,
    source: str | None = None,
    vectors: str | None = None,
) -> Config:
    """Make a complete config: the elmo pipe before the first component that can learn from it, and in the `tok2vec` of
    each of these a network with ELMo.

    lang (str): Code of the language.
    pipeline (Sequence[str]): Factories of spaCy or of plugins, in order. At least one has a `tok2vec` in its model.
    optimize (str): "efficiency" or "accuracy", which has a wider and deeper encoder.
    gpu (bool): For training on a GPU.
    placement (str): Where ELMo goes: "input", "output" or "both".
    encoder (str): "cnn", spaCy's maxout window encoder, or "bilstm".
    width (int | None): Project each mix to this width. Default: that of the weights.
    frozen (bool): Whether the language model stays as it is, or is trained with the components.
    source (str | None): Weights. Default: the model that comes with spacy-elmo.
    vectors (str | None): Name or path of a pipeline with word vectors, to be used besides.
    RETURNS (Config): The config. Its [paths] are still to be set: those of the corpora, and of the knowledge base of an
        entity_linker.
    RAISES (ConfigError): E415 for an unknown language, E451, E452 for a pipeline that cannot be.
    """
    from spacy import util
    from thinc.api import Config

    nlp = blank_pipeline(lang)
    names = _arrange(nlp, pipeline)
    config = nlp.config
    config["paths"]["vectors"] = vectors
    config["system"]["gpu_allocator"] = "pytorch" if gpu else None
    config["nlp"].update(pipeline=names, batch_size=128 if gpu else 1000)
    config["components"] = {name: {"factory": name} for name in names}
    config["components"][ELMO].update(_elmo(source, frozen))
    encode = _encode(Encoder(encoder), Optimize(optimize))
    listeners = _listeners(Placement(placement), width)
    for name in names:
        if _learns(nlp, name):
            embed = _embed(name, vectors is not None)
            tok2vec = {"@architectures": "spacy_elmo.ElmoTok2Vec.v1", "embed": embed, "encode": encode, **listeners}
            config["components"][name]["model"] = {**_default_model(nlp, name), "tok2vec": tok2vec}
    config["training"]["annotating_components"] = _annotating(nlp, names)
    if "entity_linker" in names:
        config["paths"]["kb"] = "kb"
        loader = {"@misc": "spacy.KBFromFile.v1", "kb_path": "${paths.kb}"}
        config["initialize"]["components"]["entity_linker"] = {"kb_loader": loader}
    filled = util.load_model_from_config(config, auto_fill=True).config
    # What has rules to go by cannot get better, so that its score is no reason to prefer a state of the training.
    weights = [_factory(nlp, name).default_score_weights or {} for name in names if _learns(nlp, name)]
    filled["training"]["score_weights"] = util.combine_score_weights(weights)
    return Config(filled, section_order=util.CONFIG_SECTION_ORDER)


def _arrange(nlp: Language, pipeline: Sequence[str]) -> list[str]:
    """The pipeline with its elmo pipe, and with a sentencizer where sentences are needed and nothing else finds them."""
    names = [name for name in pipeline if name != ELMO]
    for name in names:
        _check(nlp, name, names)
    learners = [name for name in names if _learns(nlp, name)]
    if not learners:
        raise ConfigError(Errors.E452.format(pipeline=names, known=_known(nlp)))
    names.insert(names.index(learners[0]), ELMO)
    if "entity_linker" in names and not any(
        _sets_sentences(nlp, name) for name in names[: names.index("entity_linker")]
    ):
        names.insert(0, "sentencizer")
    return names


def _check(nlp: Language, name: str, names: Sequence[str]) -> None:
    problem = None
    if not nlp.has_factory(name):
        problem = "no such factory is known"
    elif names.count(name) > 1:
        problem = "it is named twice"
    elif name in ("tok2vec", "transformer"):
        problem = "ELMo takes its place"
    if problem is not None:
        raise ConfigError(Errors.E451.format(name=name, problem=problem, known=_known(nlp)))


def _known(nlp: Language) -> list[str]:
    """Factories that learn from ELMo, without those of one language, such as "en.lemmatizer"."""
    from spacy.language import Language

    return sorted(name for name in Language.factories if "." not in name and _learns(nlp, name))


def _factory(nlp: Language, name: str) -> FactoryMeta:
    return nlp.get_factory_meta(name)


def _learns(nlp: Language, name: str) -> bool:
    """Whether a component has a `tok2vec` in its model, where ELMo can go."""
    return "tok2vec" in _default_model(nlp, name)


def _default_model(nlp: Language, name: str) -> dict[str, Any]:
    return (_factory(nlp, name).default_config or {}).get("model") or {}


def _sets_sentences(nlp: Language, name: str) -> bool:
    return SETS_SENTENCES in _factory(nlp, name).assigns


def _annotating(nlp: Language, names: Sequence[str]) -> list[str]:
    """What must have run before others are updated: what finds the sentences that ELMo reads, or entities are linked in."""
    before_elmo = [name for name in names[: names.index(ELMO)] if _sets_sentences(nlp, name)]
    if before_elmo or "entity_linker" not in names:
        return before_elmo
    return [name for name in names if _sets_sentences(nlp, name)][:1]


def _elmo(source: str | None, frozen: bool) -> dict[str, Any]:
    """Settings of the elmo pipe that are not those by default."""
    training = {} if frozen else {"frozen": False, "lr_scale": UNFROZEN_LR_SCALE}
    return {**training, "model": {"@architectures": "spacy_elmo.BiLM.v1", "source": source}}


def _embed(name: str, vectors: bool) -> dict[str, Any]:
    return {
        "@architectures": "spacy.MultiHashEmbed.v2",
        "width": f"${{components.{name}.model.tok2vec.encode.width}}",
        "attrs": ["NORM", "PREFIX", "SUFFIX", "SHAPE"],
        "rows": [5000, 1000, 2500, 2500],
        "include_static_vectors": vectors,
    }


def _encode(encoder: Encoder, optimize: Optimize) -> dict[str, Any]:
    width, depth = _ENCODERS[encoder][optimize]
    if encoder is Encoder.bilstm:
        return {"@architectures": "spacy_elmo.BiLSTMEncoder.v1", "width": width, "depth": depth}
    window = {"window_size": 1, "maxout_pieces": 3}
    return {"@architectures": "spacy.MaxoutWindowEncoder.v2", "width": width, "depth": depth, **window}


def _listeners(placement: Placement, width: int | None) -> dict[str, Any]:
    listener = {
        "@architectures": "spacy_elmo.ElmoListener.v1",
        "upstream": ELMO,
        "width": width,
        "dropout": LISTENER_DROPOUT,
    }
    return {
        "elmo_input": None if placement is Placement.output else listener,
        "elmo_output": None if placement is Placement.input else listener,
    }
