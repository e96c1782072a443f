"""`python -m spacy elmo init-config`: a config in which every trainable component learns from ELMo."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
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


# Width and depth of the encoder, as in the configs that spaCy generates.
_ENCODERS = {Optimize.efficiency: (96, 4), Optimize.accuracy: (256, 8)}


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
            lang, names, optimize=optimize, gpu=gpu, placement=placement, source=source, vectors=vectors
        )
        if to_stdout:
            print(config.to_str())
            return
        with whole_file(output) as beside:
            config.to_disk(beside)
    print(f"Wrote {output}. Train with your data: python -m spacy train {output} --paths.train … --paths.dev …")


def init_config(
    lang: str,
    pipeline: Sequence[str],
    *,
    optimize: str = "efficiency",
    gpu: bool = False,
    placement: str = "input",
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
    encoder = _ENCODERS[Optimize(optimize)]
    config = nlp.config
    config["paths"]["vectors"] = vectors
    config["system"]["gpu_allocator"] = "pytorch" if gpu else None
    config["nlp"].update(pipeline=names, batch_size=128 if gpu else 1000)
    config["components"] = {name: {"factory": name} for name in names}
    config["components"][ELMO]["model"] = {"@architectures": "spacy_elmo.BiLM.v1", "source": source}
    for name in names:
        if _learns(nlp, name):
            config["components"][name]["model"] = _model(nlp, name, Placement(placement), encoder, vectors is not None)
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


def _model(nlp: Language, name: str, placement: Placement, encoder: tuple[int, int], vectors: bool) -> dict[str, Any]:
    """The model that the component has by default, with ELMo in its `tok2vec`."""
    width, depth = encoder
    listener = {"@architectures": "spacy_elmo.ElmoListener.v1", "upstream": ELMO}
    tok2vec = {
        "@architectures": "spacy_elmo.ElmoTok2Vec.v1",
        "embed": {
            "@architectures": "spacy.MultiHashEmbed.v2",
            "width": f"${{components.{name}.model.tok2vec.encode.width}}",
            "attrs": ["NORM", "PREFIX", "SUFFIX", "SHAPE"],
            "rows": [5000, 1000, 2500, 2500],
            "include_static_vectors": vectors,
        },
        "encode": {
            "@architectures": "spacy.MaxoutWindowEncoder.v2",
            "width": width,
            "depth": depth,
            "window_size": 1,
            "maxout_pieces": 3,
        },
        "elmo_input": None if placement is Placement.output else listener,
        "elmo_output": None if placement is Placement.input else listener,
    }
    return {**_default_model(nlp, name), "tok2vec": tok2vec}
