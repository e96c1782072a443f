"""`python -m spacy elmo init-config`: a config that is complete, and with which every component trains as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy import util
from spacy.language import Language
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from thinc.api import Config

from spacy_elmo.cli.init_config import LISTENER_DROPOUT, init_config
from spacy_elmo.errors import ElmoError
from spacy_elmo.pipeline.mixes import layer_mixes
from tests.cli.conftest import Command
from tests.cli.labelled_docs import labelled_docs, write_docs, write_knowledge_base

TRAINABLE = [
    "tagger",
    "morphologizer",
    "trainable_lemmatizer",
    "senter",
    "parser",
    "ner",
    "spancat",
    "spancat_singlelabel",
    "span_finder",
    "textcat",
    "textcat_multilabel",
]

SCORES = {
    "tagger": "tag_acc",
    "morphologizer": "pos_acc",
    "trainable_lemmatizer": "lemma_acc",
    "senter": "sents_f",
    "parser": "dep_uas",
    "ner": "ents_f",
    "spancat": "spans_sc_f",
    "spancat_singlelabel": "spans_sc_f",
    "span_finder": "spans_sc_f",
    "textcat": "cats_score",
    "textcat_multilabel": "cats_score",
    "entity_linker": "nel_micro_f",
}

PLACEMENTS = {"input": ["elmo_input"], "output": ["elmo_output"], "both": ["elmo_input", "elmo_output"]}


def train_with(config: Config, directory: Path, **paths: Path) -> Language:
    """Train for a few steps as `spacy train` does, with a smaller encoder."""
    data = write_docs(directory / "docs.spacy")
    config = Config(config).copy()
    config["paths"].update(train=str(data), dev=str(data), **{name: str(path) for name, path in paths.items()})
    config["training"].update(max_steps=6, eval_frequency=6)
    for component in config["components"].values():
        if "tok2vec" in component.get("model", {}):
            component["model"]["tok2vec"]["encode"].update(width=16, depth=1)
            component["model"]["tok2vec"]["embed"]["rows"] = [50, 50, 50, 50]
    nlp = init_nlp(config)
    nlp, _ = train(nlp, None)
    return nlp


def blank_with(source: Path) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"source": str(source)}})
    nlp.initialize()
    return nlp


def examples_for(nlp: Language) -> list[Example]:
    return [Example(nlp.make_doc(doc.text), doc) for doc in labelled_docs(nlp.vocab)]


@pytest.mark.parametrize("name", TRAINABLE)
def test_components_train_and_predict(name: str, source: Path, tmp_path: Path) -> None:
    nlp = train_with(init_config("en", [name], source=str(source)), tmp_path)
    assert nlp.pipe_names == ["elmo", name]
    assert 0 <= nlp.evaluate(examples_for(nlp))[SCORES[name]] <= 1
    assert [len(doc) for doc in nlp.pipe(["Anna paid.", "", "Tom"])] == [3, 0, 1]
    assert [mix.component for mix in layer_mixes(nlp)] == [name]


def test_components_learn_mixes_of_their_own(source: Path, tmp_path: Path) -> None:
    nlp = train_with(init_config("en", ["tagger", "ner"], source=str(source)), tmp_path)
    tagger, ner = layer_mixes(nlp)
    assert tagger.shares != ner.shares and tagger.shares != [pytest.approx(1 / 3)] * 3


def test_entity_linker_trains_and_predicts(source: Path, tmp_path: Path) -> None:
    config = init_config("en", ["ner", "entity_linker"], source=str(source))
    assert config["nlp"]["pipeline"] == ["sentencizer", "elmo", "ner", "entity_linker"]
    nlp = train_with(config, tmp_path, kb=write_knowledge_base(tmp_path / "kb"))
    doc = nlp.make_doc("Anna visited Paris. Tom likes Paris.")
    doc.set_ents([doc.char_span(13, 18, "LOC"), doc.char_span(30, 35, "LOC")])
    doc = nlp.get_pipe("entity_linker")(nlp.get_pipe("elmo")(nlp.get_pipe("sentencizer")(doc)))
    assert {ent.kb_id_ for ent in doc.ents} <= {"QPER", "QLOC"} and len(doc.ents) == 2


def test_entity_linker_after_a_parser(source: Path, tmp_path: Path) -> None:
    config = init_config("en", ["parser", "ner", "entity_linker"], source=str(source))
    assert config["training"]["annotating_components"] == ["parser"]
    nlp = train_with(config, tmp_path, kb=write_knowledge_base(tmp_path / "kb"))
    assert len(nlp("Anna visited Paris.").text) == 19


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("optimize", ["efficiency", "accuracy"])
def test_elmo_goes_where_it_is_asked_for(placement: str, optimize: str) -> None:
    config = init_config("en", ["ner"], placement=placement, optimize=optimize)
    tok2vec = config["components"]["ner"]["model"]["tok2vec"]
    assert [name for name in ("elmo_input", "elmo_output") if tok2vec[name] is not None] == PLACEMENTS[placement]


@pytest.mark.parametrize(
    "settings",
    [
        {"encoder": "bilstm", "placement": "both", "optimize": "accuracy"},
        {"frozen": False},
        {"frozen": False, "encoder": "bilstm", "placement": "output", "width": 8},
        {"width": 8, "placement": "both"},
    ],
    ids=str,
)
def test_every_form_trains_as_it_is(settings: dict[str, Any], source: Path, tmp_path: Path) -> None:
    nlp = train_with(init_config("en", ["tagger", "textcat"], source=str(source), **settings), tmp_path)
    assert nlp.get_pipe("elmo").is_frozen is settings.get("frozen", True)
    fingerprint = blank_with(source).get_pipe("elmo").fingerprint
    assert (nlp.get_pipe("elmo").fingerprint() == fingerprint()) is settings.get("frozen", True)
    tok2vec = nlp.get_pipe("tagger").model.get_ref("tok2vec")
    encoder = "bilstm" if settings.get("encoder") == "bilstm" else "with_array"
    assert any(node.name.startswith(encoder) for node in tok2vec.get_ref("encode").walk())
    ends = [tok2vec.maybe_get_ref(name) for name in ("elmo_input", "elmo_output")]
    widths = {end.get_dim("nO") for end in ends if end is not None}
    assert widths == {settings.get("width", 16)}
    assert 0 <= nlp.evaluate(examples_for(nlp))["tag_acc"] <= 1


@pytest.mark.parametrize("gpu", [False, True])
def test_config_is_complete(gpu: bool, tmp_path: Path) -> None:
    config = init_config("de", ["tagger", "ner"], gpu=gpu)
    nlp = util.load_model_from_config(config, auto_fill=False, validate=True)
    assert nlp.config.to_str() == config.to_str()
    assert config["system"]["gpu_allocator"] == ("pytorch" if gpu else None)
    assert config["nlp"]["lang"] == "de"


def test_nothing_is_frozen_but_the_language_model() -> None:
    config = init_config("en", ["tagger", "ner"])
    assert config["components"]["elmo"]["frozen"] is True
    assert config["training"]["frozen_components"] == [] and config["training"]["annotating_components"] == []


def test_sentences_that_elmo_reads_are_found_in_training_too() -> None:
    config = init_config("en", ["sentencizer", "tagger"])
    assert config["nlp"]["pipeline"] == ["sentencizer", "elmo", "tagger"]
    assert config["training"]["annotating_components"] == ["sentencizer"]
    assert not any(name.startswith("sents") for name in config["training"]["score_weights"])


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_dropout_of_every_listener_is_that_of_the_small_model(placement: str) -> None:
    components = init_config("en", ["ner", "tagger"], placement=placement)["components"]
    listeners = [
        components[name]["model"]["tok2vec"][end] for name in ("ner", "tagger") for end in PLACEMENTS[placement]
    ]
    assert [listener["dropout"] for listener in listeners] == [LISTENER_DROPOUT] * len(listeners)


def test_what_does_not_learn_stays_where_it_is() -> None:
    config = init_config("en", ["ner", "entity_ruler"])
    assert config["nlp"]["pipeline"] == ["elmo", "ner", "entity_ruler"]


def test_scores_of_all_components_count() -> None:
    weights = init_config("en", ["tagger", "ner"])["training"]["score_weights"]
    assert weights["tag_acc"] == weights["ents_f"] == 0.5


def test_vectors_are_used_besides() -> None:
    config = init_config("en", ["ner"], vectors="en_core_web_md")
    assert config["paths"]["vectors"] == "en_core_web_md"
    assert config["components"]["ner"]["model"]["tok2vec"]["embed"]["include_static_vectors"] is True


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (["neer"], r"E451.*'neer'.*no such factory.*'ner'"),
        (["ner", "ner"], r"E451.*'ner'.*named twice"),
        (["tok2vec", "ner"], r"E451.*'tok2vec'.*ELMo takes its place"),
        (["sentencizer"], r"E452.*\['sentencizer'\].*'tagger'"),
        ([], r"E452"),
    ],
)
def test_pipelines_that_cannot_be(pipeline: list[str], message: str) -> None:
    with pytest.raises(ElmoError, match=message):
        init_config("en", pipeline)


def test_unknown_language() -> None:
    with pytest.raises(ElmoError, match="E415.*'zzz'"):
        init_config("zzz", ["ner"])


def test_command_writes_the_config(source: Path, tmp_path: Path, spacy_command: Command) -> None:
    output = tmp_path / "new one" / "config.cfg"
    options: list[Any] = [
        "--pipeline",
        "ner, tagger",
        "--lang",
        "en",
        "--source",
        source,
        "--placement",
        "both",
        "--gpu",
        "--encoder",
        "bilstm",
        "--width",
        64,
        "--unfrozen",
    ]
    result = spacy_command("elmo", "init-config", output, *options)
    assert result.exit_code == 0, result.output
    settings: dict[str, Any] = {"placement": "both", "gpu": True, "encoder": "bilstm", "width": 64, "frozen": False}
    expected = init_config("en", ["ner", "tagger"], source=str(source), **settings)
    assert util.load_config(output).to_str() == expected.to_str()
    assert f"spacy train '{output}'" in result.output


def test_command_prints_the_config(spacy_command: Command) -> None:
    result = spacy_command("elmo", "init-config", "-", "-p", "ner")
    assert Config().from_str(result.stdout, interpolate=False).to_str() == init_config("en", ["ner"]).to_str()


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path: Path, spacy_command: Command) -> None:
    output = tmp_path / "config.cfg"
    output.write_text("mine")
    result = spacy_command("elmo", "init-config", output, "-p", "ner")
    assert result.exit_code == 1 and "[ELMO-E450]" in result.output and output.read_text() == "mine"
    result = spacy_command("elmo", "init-config", output, "-p", "ner", "--force")
    assert result.exit_code == 0 and "[components.elmo]" in output.read_text()


def test_errors_are_one_message(tmp_path: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "init-config", tmp_path / "config.cfg", "-p", "neer")
    assert result.exit_code == 1 and "[ELMO-E451]" in result.output and "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []
