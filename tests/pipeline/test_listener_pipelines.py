"""Pipelines that change: components that are sourced, replaced, renamed, removed, in another order, or linked to other weights.
What comes out is right, or a coded message names the components."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.util import registry
from thinc.api import Adam, Maxout, Model, concatenate, fix_random_seed, with_array

from spacy_elmo.errors import ConfigError, ElmoWarning, PipelineError
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.weights.native import load_bilm, save_bilm
from tests.pipeline.toy_data import SENTENCES, add_listening, make_examples, train

ENCODER = {
    "@architectures": "spacy.MaxoutWindowEncoder.v2",
    "width": 8,
    "depth": 1,
    "window_size": 1,
    "maxout_pieces": 2,
}
TEXTS = [" ".join(sentence["words"]) for sentence in SENTENCES]


@pytest.fixture
def listening(make_nlp) -> Callable[..., Language]:
    """A function that makes a trained pipeline of an elmo pipe and two that listen to it."""

    def make(listener: dict[str, Any] | None = None, steps: int = 25, **settings: Any) -> Language:
        fix_random_seed(0)
        nlp = make_nlp(**settings)
        for name in ("tagger", "ner"):
            add_listening(nlp, name, **(listener or {}))
        train(nlp, make_examples(nlp), steps=steps)
        return nlp

    return make


@pytest.fixture
def other_weights(source: Path, tmp_path: Path) -> Path:
    """A biLM of the same shape with other weights."""
    torch.manual_seed(2)
    save_bilm(BiLM(load_bilm(source).config), tmp_path / "other")
    return tmp_path / "other"


@pytest.fixture
def wide_weights(source: Path, tmp_path: Path) -> Path:
    """A wider biLM."""
    save_bilm(BiLM(replace(load_bilm(source).config, projection=12)), tmp_path / "wide")
    return tmp_path / "wide"


def with_weights(directory: Path, name: str = "elmo", vocab: Any = True, **settings: Any) -> Language:
    nlp = spacy.blank("en", vocab=vocab)
    nlp.add_pipe("elmo", name, config={"model": {"source": str(directory)}, **settings})
    return nlp


def outcome(nlp: Language) -> Any:
    return [[(token.tag_, token.ent_type_) for token in doc] for doc in nlp.pipe(TEXTS)]


def vectors(nlp: Language, name: str) -> list[np.ndarray]:
    docs = [nlp(text) for text in TEXTS]
    return nlp.get_pipe(name).model.get_ref("tok2vec").predict(docs)


def codes(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message)[6:10] for each in caught if issubclass(each.category, ElmoWarning)]


@pytest.fixture
def caught():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


@pytest.mark.parametrize("listener", [{}, {"width": 9, "layer_norm": "token"}], ids=["plain", "projected"])
@pytest.mark.parametrize("frozen", [True, False])
def test_replaced_listener_keeps_what_it_has_learned_and_learns_on(
    listening, tmp_path: Path, frozen: bool, listener: dict[str, Any]
):
    nlp = listening(listener, steps=8, frozen=frozen, lr_scale=[0.5, 1.0, 1.0])
    expected = vectors(nlp, "tagger")
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    assert nlp.get_pipe("elmo").listening_components == ["ner"]
    shims = [shim for pipe in ("elmo", "tagger") for node in nlp.get_pipe(pipe).model.walk() for shim in node.shims]
    assert len({shim.id for shim in shims}) == 2, "with one id they would share the moments of an optimizer"
    own = nlp.get_pipe("elmo").bilm
    weights = {name: weight.detach().clone() for name, weight in own.named_parameters()}
    block = nlp.config["components"]["tagger"]["model"]["tok2vec"]
    assert block["@architectures"] == "spacy_elmo.Elmo.v1" and block["frozen"] is frozen
    assert {name: block[name] for name in listener} == listener
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    loaded.remove_pipe("ner")
    loaded.remove_pipe("elmo")
    for pipeline in (nlp, loaded):
        for array, before in zip(vectors(pipeline, "tagger"), expected):
            np.testing.assert_allclose(array, before, atol=1e-6)
        optimizer = Adam(0.001)
        losses = [pipeline.update(make_examples(pipeline), sgd=optimizer, exclude=["ner"])["tagger"] for _ in range(20)]
        assert losses[-1] < losses[0]
        assert any(np.abs(array - before).max() > 1e-4 for array, before in zip(vectors(pipeline, "tagger"), expected))
        (bilm,) = [shim.bilm for node in pipeline.get_pipe("tagger").model.walk() for shim in node.shims]
        has_moved = any(not torch.equal(weight, weights[name]) for name, weight in bilm.named_parameters())
        assert has_moved is not frozen
    assert all(torch.equal(weight, weights[name]) for name, weight in own.named_parameters()), (
        "the elmo pipe has its own"
    )


def test_replaced_listener_is_initialized_and_trained_from_its_config(listening):
    nlp = listening({"layer_norm": "token"}, steps=1)
    nlp.replace_listeners("elmo", "ner", ["model.tok2vec"])
    fresh = spacy.util.load_model_from_config(nlp.config, auto_fill=True)
    fresh.remove_pipe("tagger")
    fresh.remove_pipe("elmo")
    train(fresh, make_examples(fresh), steps=40)
    assert [[entity.label_ for entity in doc.ents] for doc in fresh.pipe(TEXTS)] == [["ORG", "PERSON"], ["PERSON"]]


def test_listeners_of_different_settings_are_not_replaced(make_nlp):
    nlp = make_nlp()
    listener = {"@architectures": "spacy_elmo.ElmoListener.v1"}
    placed = {"elmo_input": {**listener, "layer": 1}, "elmo_output": {**listener, "layer": 2}}
    tok2vec = {"@architectures": "spacy_elmo.ElmoTok2Vec.v1", "embed": None, "encode": ENCODER, **placed}
    nlp.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": tok2vec}})
    with pytest.raises(PipelineError, match="E314"):
        nlp.replace_listeners("elmo", "tagger", ["model.tok2vec.elmo_input", "model.tok2vec.elmo_output"])


@pytest.mark.parametrize("path", ["model", "model.tok2vec", "model.tok2vec.encode"])
def test_replacing_other_than_the_listener_is_refused_before_anything_changes(source: Path, path):
    nlp = with_weights(source)
    listener = {"@architectures": "spacy_elmo.ElmoListener.v1"}
    tok2vec = {"@architectures": "spacy_elmo.ElmoTok2Vec.v1", "embed": None, "encode": ENCODER, "elmo_input": listener}
    nlp.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": tok2vec}})
    nlp.initialize(lambda: make_examples(nlp))
    before = nlp.config.to_str()
    with pytest.raises(PipelineError, match=f"E318.*'{path}'.*'model.tok2vec.elmo_input'"):
        nlp.replace_listeners("elmo", "tagger", [path])
    assert nlp.config.to_str() == before
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec.elmo_input"])


def test_sourced_component_works_with_the_weights_it_knows(listening, source: Path, caught):
    nlp = listening()
    expected = outcome(nlp)
    other = with_weights(source, vocab=nlp.vocab)
    for name in ("tagger", "ner"):
        other.add_pipe(name, source=nlp)
    assert outcome(other) == expected
    assert codes(caught) == []


def test_sourced_component_on_other_weights_is_told_so_once(listening, other_weights: Path, tmp_path: Path, caught):
    nlp = listening()
    other = with_weights(other_weights, vocab=nlp.vocab)
    other.add_pipe("ner", source=nlp)
    other("a text")
    other("a text")
    assert codes(caught) == ["W301"]
    assert "'ner'" in str(caught[-1].message) and "'elmo'" in str(caught[-1].message)
    other.to_disk(tmp_path / "saved")
    caught.clear()
    spacy.load(tmp_path / "saved")("a text")
    assert codes(caught) == ["W301"], "saving must not launder it"


def test_layers_of_weights_that_were_replaced_are_served_no_more(listening, other_weights: Path):
    nlp = listening(steps=1)
    examples, elmo = make_examples(nlp), nlp.get_pipe("elmo")
    elmo.update(examples)
    elmo.bilm = load_bilm(other_weights)
    tok2vec = nlp.get_pipe("tagger").model.get_ref("tok2vec")
    with pytest.warns(ElmoWarning, match="W301"):
        vectors, _ = tok2vec([example.predicted for example in examples], is_train=True)
    for array, fresh in zip(vectors, tok2vec.predict([nlp.make_doc(text) for text in TEXTS])):
        np.testing.assert_allclose(array, fresh, atol=1e-6)


def test_component_whose_weights_are_replaced_is_told_so_then_and_when_loaded(
    listening, other_weights: Path, tmp_path: Path, caught
):
    nlp = listening(steps=1)
    nlp.get_pipe("elmo").bilm = load_bilm(other_weights)
    nlp("a text")
    assert codes(caught) == ["W301", "W301"]
    nlp.to_disk(tmp_path / "saved")
    caught.clear()
    spacy.load(tmp_path / "saved")("a text")
    assert codes(caught) == ["W301", "W301"]


def test_component_whose_elmo_pipe_is_initialized_with_other_weights_is_told_so(listening, other_weights: Path, caught):
    nlp = listening(steps=1)
    nlp.get_pipe("elmo").initialize(lambda: [], nlp=nlp, source=str(other_weights))
    nlp("a text")
    assert codes(caught) == ["W301", "W301"]


def test_component_that_was_trained_on_the_other_weights_is_not_told(
    listening, other_weights: Path, tmp_path: Path, caught
):
    nlp = listening()
    other = with_weights(other_weights, vocab=nlp.vocab)
    other.add_pipe("ner", source=nlp)
    other.update(make_examples(other), sgd=Adam(0.01))
    other.to_disk(tmp_path / "saved")
    caught.clear()
    spacy.load(tmp_path / "saved")("a text")
    assert codes(caught) == []


@pytest.mark.parametrize("frozen", [True, False])
def test_saved_pipeline_knows_its_weights(listening, tmp_path: Path, frozen: bool, caught):
    nlp = listening(frozen=frozen)
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    assert outcome(loaded) == outcome(nlp)
    assert codes(caught) == []


def test_component_shared_by_two_pipelines_reads_each_with_its_own_weights(listening, other_weights: Path):
    nlp = listening()
    expected = outcome(nlp)
    layers = vectors(nlp, "ner")
    other = with_weights(other_weights, vocab=nlp.vocab)
    with pytest.warns(ElmoWarning, match="W301"):
        other.add_pipe("ner", source=nlp)
        outcome(other)
    assert outcome(nlp) == expected
    for array, before in zip(vectors(nlp, "ner"), layers):
        np.testing.assert_allclose(array, before, atol=1e-6)
    assert any(np.abs(array - before).max() > 1e-3 for array, before in zip(vectors(other, "ner"), layers))


def test_weights_of_another_width_are_refused_by_name(listening, wide_weights: Path):
    nlp = listening()
    other = with_weights(wide_weights, vocab=nlp.vocab)
    other.add_pipe("ner", source=nlp)
    for use in (lambda: other("a text"), lambda: other.update(make_examples(other))):
        with pytest.raises(PipelineError, match="E312.*'ner'.*width 16.*'elmo'.*width 24"):
            use()


def test_disabled_pipe_is_served_in_training_as_well(listening):
    nlp = listening()
    with nlp.select_pipes(disable="elmo"):
        first = nlp.update(make_examples(nlp), sgd=Adam(0.01))["tagger"]
        for _ in range(5):
            last = nlp.update(make_examples(nlp), sgd=Adam(0.01))["tagger"]
    assert 0 < last < first


def test_pipes_that_are_disabled_when_loaded_work_when_they_are_enabled(listening, tmp_path: Path):
    nlp = listening()
    expected = outcome(nlp)
    nlp.to_disk(tmp_path)
    for disabled in ("elmo", "ner", ["elmo", "tagger", "ner"]):
        loaded = spacy.load(tmp_path, disable=disabled)
        if disabled == "elmo":
            assert outcome(loaded) == expected
        for name in loaded.disabled:
            loaded.enable_pipe(name)
        assert outcome(loaded) == expected
        assert loaded.get_pipe("elmo").listening_components == ["tagger", "ner"]
        assert loaded.update(make_examples(loaded), sgd=Adam(0.001))["ner"] > 0


def test_removed_pipe_still_serves_and_says_so_but_a_saved_pipeline_misses_it(listening, tmp_path: Path, caught):
    nlp = listening()
    expected = outcome(nlp)
    nlp.remove_pipe("elmo")
    assert outcome(nlp) == outcome(nlp) == expected
    assert nlp.update(make_examples(nlp), sgd=Adam(0.001))["ner"] >= 0
    assert codes(caught) == ["W320"] and "['tagger', 'ner'] listen to the elmo pipe 'elmo'" in str(caught[0].message)
    nlp.to_disk(tmp_path)
    with pytest.raises(PipelineError, match=r"E311.*'tagger'.*'elmo'.*\[components.tagger.model\]"):
        spacy.load(tmp_path)("a text")


@pytest.mark.parametrize("way", ["disabled", "copied", "pickled", "alone", "replaced", "sourced"])
def test_pipe_that_is_still_there_in_some_way_is_not_called_removed(listening, source: Path, caught, way: str):
    nlp = original = listening(steps=1)
    if way == "disabled":
        nlp.disable_pipe("elmo")
    elif way == "copied":
        nlp = copy.deepcopy(original)
        nlp.disable_pipe("elmo")
    elif way == "pickled":
        nlp = pickle.loads(pickle.dumps(original))
        nlp.disable_pipe("elmo")
    elif way == "alone":
        nlp.get_pipe("tagger")(nlp.make_doc("a bank"))
    elif way == "replaced":
        nlp.replace_pipe("elmo", "elmo", config={"model": {"source": str(source)}})
    else:
        other = spacy.blank("en", vocab=nlp.vocab)
        for name in ("elmo", "tagger", "ner"):
            other.add_pipe(name, source=original)
        original.remove_pipe("elmo")
        nlp = other
    outcome(nlp)
    nlp.update(make_examples(nlp), sgd=Adam(0.001))
    assert codes(caught) == []


def test_copy_of_a_pipeline_notices_the_removal_too(listening, caught):
    nlp = copy.deepcopy(listening(steps=1))
    nlp.remove_pipe("elmo")
    outcome(nlp)
    assert codes(caught) == ["W320"]


def test_sourced_component_that_listens_to_a_pipe_of_another_pipeline_is_named(listening, source: Path, caught):
    nlp = listening(steps=1)
    other = with_weights(source, "bilm", vocab=nlp.vocab)
    other.add_pipe("ner", source=nlp)
    assert codes(caught) == ["W320"] and "['ner'] listen to the elmo pipe 'elmo'" in str(caught[0].message)


def test_mix_that_is_not_finite_is_an_error_that_names_the_component(listening, tmp_path: Path):
    nlp = listening(steps=1)
    nlp.rename_pipe("ner", "entities")
    mix = next(node for node in nlp.get_pipe("entities").model.walk() if node.name == "scalar_mix")
    mix.set_param("W", mix.get_param("W") * np.nan)
    nlp.to_disk(tmp_path)
    for pipeline in (nlp, spacy.load(tmp_path)):
        with pytest.raises(PipelineError, match=r"E380.*'entities' \(\[components.entities.model\]\).*nan"):
            pipeline("a text")


def test_replaced_listener_whose_mix_is_not_finite_is_named(listening, tmp_path: Path):
    nlp = listening(steps=1)
    nlp.replace_listeners("elmo", "ner", ["model.tok2vec"])
    mix = next(node for node in nlp.get_pipe("ner").model.walk() if node.name == "scalar_mix")
    mix.set_param("gamma", mix.get_param("gamma") * np.inf)
    nlp.to_disk(tmp_path)
    with pytest.raises(PipelineError, match="E380.*'ner'.*inf"):
        spacy.load(tmp_path)("a text")


def test_pipeline_loaded_without_its_elmo_pipe_says_what_is_missing(listening, tmp_path: Path):
    listening().to_disk(tmp_path)
    with pytest.raises(PipelineError, match="E311.*'tagger'.*'elmo'"):
        spacy.load(tmp_path, exclude="elmo")("a text")


def test_renamed_pipe_still_serves_and_says_that_the_name_no_longer_fits(listening, tmp_path: Path, caught):
    nlp = listening()
    expected = outcome(nlp)
    nlp.rename_pipe("elmo", "bilm")
    assert set(codes(caught)) == {"W302"}
    assert {"'tagger'", "'ner'"} <= {word for each in caught for word in str(each.message).split()}
    assert outcome(nlp) == expected
    assert nlp.update(make_examples(nlp), sgd=Adam())["ner"] > 0
    nlp.to_disk(tmp_path)
    with pytest.raises(PipelineError, match="E311.*'tagger'.*'elmo'"):
        spacy.load(tmp_path)("a text")


def test_listener_before_its_pipe_is_an_error_that_names_it(source: Path):
    nlp = spacy.blank("en")
    add_listening(nlp, "tagger")
    nlp.add_pipe("elmo", config={"model": {"source": str(source)}})
    with pytest.raises(PipelineError, match="E311.*'tagger'.*'elmo'"):
        nlp.initialize(lambda: make_examples(nlp))


def test_wrong_name_of_the_upstream_is_an_error_that_names_it(make_nlp):
    nlp = make_nlp()
    add_listening(nlp, "tagger", upstream="elmo2")
    with pytest.raises(PipelineError, match="E311.*'tagger'.*'elmo2'"):
        nlp.initialize(lambda: make_examples(nlp))


def test_pipeline_without_an_elmo_pipe_is_an_error():
    nlp = spacy.blank("en")
    add_listening(nlp, "tagger")
    add_listening(nlp, "ner")
    for use in (
        lambda: nlp.initialize(lambda: make_examples(nlp)),
        lambda: nlp("a text"),
        lambda: list(nlp.pipe(["a"])),
    ):
        with pytest.raises(PipelineError, match=r"E311.*'tagger'.*'elmo'.*\[components.tagger.model\]"):
            use()
    with nlp.select_pipes(disable="tagger"), pytest.raises(PipelineError, match="E311.*'ner'.*'elmo'"):
        nlp.initialize(lambda: make_examples(nlp))


def test_two_elmo_pipes_serve_each_its_own(make_nlp, other_weights: Path, caught):
    nlp = make_nlp()
    nlp.add_pipe("elmo", "domain", config={"model": {"source": str(other_weights)}})
    add_listening(nlp, "tagger", upstream="elmo")
    add_listening(nlp, "tagger", "second", upstream="domain")
    train(nlp, make_examples(nlp), steps=2)
    assert nlp.get_pipe("elmo").listening_components == ["tagger"]
    assert nlp.get_pipe("domain").listening_components == ["second"]
    for name, upstream in (("tagger", "elmo"), ("second", "domain")):
        bilm = nlp.get_pipe(upstream).bilm
        with torch.no_grad():
            expected = bilm([TEXTS[0].split()]).layers
        mix = next(node for node in nlp.get_pipe(name).model.walk() if node.name == "scalar_mix")
        np.testing.assert_allclose(vectors(nlp, name)[0], mix.predict([expected.numpy()])[0], atol=1e-5)
    assert codes(caught) == []


def test_any_upstream_among_two_is_the_nearest_and_a_warning(make_nlp, other_weights: Path, caught):
    nlp = make_nlp()
    nlp.add_pipe("elmo", "domain", config={"model": {"source": str(other_weights)}})
    add_listening(nlp, "tagger", upstream="*")
    assert codes(caught) == ["W300"]
    assert all(name in str(caught[0].message) for name in ("'tagger'", "'elmo'", "'domain'"))
    assert nlp.get_pipe("elmo").listeners == []
    assert nlp.get_pipe("domain").listening_components == ["tagger"]
    assert train(nlp, make_examples(nlp), steps=1)["tagger"] > 0


def test_any_upstream_is_the_one_there_is(make_nlp, caught):
    nlp = make_nlp()
    add_listening(nlp, "tagger", upstream="*")
    nlp._link_components()
    assert nlp.get_pipe("elmo").listening_components == ["tagger"]
    assert codes(caught) == []


@pytest.mark.parametrize(
    "encoder", ["spacy.MaxoutWindowEncoder.v2", "spacy.MishWindowEncoder.v2", "spacy.TorchBiLSTMEncoder.v1"]
)
@pytest.mark.parametrize(("projection", "given"), [(None, 16), (10, 10), (12, None)])
def test_encoder_of_another_width_in_spacys_tok2vec_is_named(source: Path, encoder, projection, given):
    nlp = with_weights(source)
    settings: dict[str, object] = {"@architectures": encoder, "width": 12, "depth": 1}
    settings |= {"dropout": 0.0} if "LSTM" in encoder else {"window_size": 1}
    settings |= {"maxout_pieces": 2} if "Maxout" in encoder else {}
    listener = {"@architectures": "spacy_elmo.ElmoListener.v1", "width": projection}
    tok2vec = {"@architectures": "spacy.Tok2Vec.v2", "embed": listener, "encode": settings}
    nlp.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": tok2vec}})
    if given is None:
        nlp.initialize(lambda: make_examples(nlp))
        return
    with pytest.raises(ConfigError, match=f"E351.*component 'tagger'.*width 12.*gives {given}"):
        nlp.initialize(lambda: make_examples(nlp))


def widening(width: int) -> Model:
    """An encoder that takes whatever width comes."""
    return with_array(Maxout(nO=width, nP=2))


def spacys_tok2vec(upstream: str, width: int) -> dict[str, Any]:
    listener = {"@architectures": "spacy_elmo.ElmoListener.v1", "upstream": upstream}
    encode = {"@architectures": "spacy.MishWindowEncoder.v2", "width": width, "depth": 1, "window_size": 1}
    return {"@architectures": "spacy.Tok2Vec.v2", "embed": listener, "encode": encode}


@pytest.mark.parametrize("architecture", ["spacy.Tok2Vec.v2", "spacy_elmo.ElmoTok2Vec.v1"])
def test_encoder_that_takes_any_width(source: Path, architecture):
    registry.architectures("tests.widening.v1", func=widening)
    nlp = with_weights(source)
    listener = {"@architectures": "spacy_elmo.ElmoListener.v1"}
    encode = {"@architectures": "tests.widening.v1", "width": 12}
    tok2vec: dict[str, Any] = {"@architectures": architecture, "embed": listener, "encode": encode}
    if "Elmo" in architecture:
        tok2vec |= {"elmo_output": listener}
    nlp.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": tok2vec}})
    examples = make_examples(nlp)
    nlp.initialize(lambda: examples)
    assert nlp.update(examples)["tagger"] > 0


def test_encoders_over_two_elmo_pipes_of_different_widths(source: Path, wide_weights: Path):
    registry.architectures("tests.concatenate.v1", func=lambda left, right: concatenate(left, right))
    nlp = with_weights(source)
    nlp.add_pipe("elmo", "wide", config={"model": {"source": str(wide_weights)}})
    parts = {"left": spacys_tok2vec("elmo", 16), "right": spacys_tok2vec("wide", 24)}
    tok2vec = {"@architectures": "tests.concatenate.v1", **parts}
    nlp.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": tok2vec}})
    nlp.initialize(lambda: make_examples(nlp))
    assert {name: nlp.get_pipe(name).listening_components for name in ("elmo", "wide")} == {
        "elmo": ["tagger"],
        "wide": ["tagger"],
    }


def test_a_disabled_pipe_is_initialized_though_its_listener_is_gone(make_nlp):
    nlp = make_nlp()
    add_listening(nlp, "tagger")
    nlp.disable_pipe("elmo")
    nlp.remove_pipe("tagger")
    nlp.get_pipe("elmo").initialize(list, nlp=nlp)
    assert nlp.get_pipe("elmo").has_weights
