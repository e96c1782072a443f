from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Config

from spacy_elmo.errors import ConfigError, PipelineError, WeightsError
from spacy_elmo.pipeline.attributes import KEY
from spacy_elmo.pipeline.component import Elmo

TEXTS = ["I sat on the bank", "", "they paid the bank", " \n ", "a", "the bank " * 30, "and so on ."]


def test_pipe_works_without_initialize_and_loads_at_first_use(make_nlp, mixed):
    nlp = make_nlp()
    assert not nlp.get_pipe("elmo").model.shims[0].is_loaded
    np.testing.assert_allclose(nlp("a bank")._.elmo, mixed(["a", "bank"]), atol=1e-6)


def test_initialize_loads_the_weights_and_changes_no_vector(make_nlp, mixed):
    nlp = make_nlp()
    nlp.initialize()
    assert nlp.get_pipe("elmo").model.shims[0].is_loaded
    np.testing.assert_allclose(nlp("a bank")._.elmo, mixed(["a", "bank"]), atol=1e-6)


@pytest.mark.parametrize(
    ("layer_weights", "shares"),
    [
        (None, [1 / 3, 1 / 3, 1 / 3]),
        (0, [1, 0, 0]),
        (2, [0, 0, 1]),
        ([1, 1, 2], [0.25, 0.25, 0.5]),
        ([0, 1.5, 0], [0, 1, 0]),
    ],
)
def test_layer_weights(make_nlp, layers_of, layer_weights: Any, shares: list[float]):
    vectors = make_nlp(layer_weights=layer_weights)("a bank")._.elmo
    np.testing.assert_allclose(vectors, np.einsum("tld,l->td", layers_of(["a", "bank"]), shares), atol=1e-6)


def test_gamma_scales_the_mix(make_nlp, mixed):
    np.testing.assert_allclose(make_nlp(gamma=2.5)("a bank")._.elmo, 2.5 * mixed(["a", "bank"]), atol=1e-6)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("layer_weights", 3),
        ("layer_weights", -1),
        ("layer_weights", [1, 2]),
        ("layer_weights", []),
        ("layer_weights", [0, 0, 0]),
        ("layer_weights", [1, -1, 1]),
        ("store", "everything"),
    ],
)
def test_impossible_settings_are_refused_by_name(make_nlp, setting: str, value: Any):
    with pytest.raises(ConfigError, match=f"E300.*{setting}"):
        make_nlp(**{setting: value})


def test_infinite_gamma_is_refused(nlp: Language):
    with pytest.raises(ConfigError, match="E300.*gamma"):
        Elmo(nlp.vocab, nlp.get_pipe("elmo").model, gamma=float("inf"))


def test_store_none_leaves_the_doc_alone(make_nlp):
    doc = make_nlp(store="none")("a bank")
    assert doc.user_data == {}
    assert doc.tensor.size == 0


def test_store_mixed_keeps_no_layers(nlp: Language):
    assert "layers" not in nlp("a bank").user_data[KEY]


def test_predict_changes_no_doc(nlp: Language):
    doc = nlp.make_doc("a bank")
    (predicted,) = nlp.get_pipe("elmo").predict([doc])
    assert predicted.mixed.shape == (2, 16)
    assert doc.user_data == {} and doc.tensor.size == 0


@pytest.mark.parametrize("store", ["mixed", "layers"])
def test_each_doc_owns_its_memory(make_nlp, store: str):
    docs = list(make_nlp(store=store).pipe(["a bank", "they paid"]))
    arrays = [array for doc in docs for array in doc.user_data[KEY].values() if isinstance(array, np.ndarray)]
    assert all(array.base is None for array in arrays)
    assert not np.shares_memory(docs[0].tensor, docs[1].tensor)


def test_pipe_is_ready_for_an_endless_stream(nlp: Language):
    def endless():
        while True:
            yield "a bank"

    docs = nlp.pipe(endless(), batch_size=3)
    assert next(docs)._.elmo.shape == next(docs)._.elmo.shape == (2, 16)


def test_memory_of_a_batch_is_bounded_by_words(source: Path, monkeypatch: pytest.MonkeyPatch):
    nlp = spacy.blank("en")
    elmo = nlp.add_pipe("elmo", config={"model": {"source": str(source), "max_batch_words": 2}})
    sizes = []
    predict = elmo.predict

    def counted(docs: list[Doc]):
        sizes.append([len(doc) for doc in docs])
        return predict(docs)

    monkeypatch.setattr(elmo, "predict", counted)
    docs = list(nlp.pipe(["a b c", "a b c", "a b c", "a " * 10, "", "a"], batch_size=100))
    # At most four times max_batch_words words, unless one Doc alone has more.
    assert sizes == [[3, 3], [3], [10], [0, 1]]
    assert [len(doc) for doc in docs] == [3, 3, 3, 10, 0, 1]


def test_error_handler_decides_about_a_failing_batch(make_nlp, monkeypatch: pytest.MonkeyPatch):
    nlp = make_nlp()
    elmo = nlp.get_pipe("elmo")
    predict = elmo.predict

    def fail_on_bad(docs: list[Doc]):
        if any(doc.text == "bad" for doc in docs):
            raise RuntimeError("no")
        return predict(docs)

    monkeypatch.setattr(elmo, "predict", fail_on_bad)
    with pytest.raises(RuntimeError):
        list(nlp.pipe(["a", "bad"], batch_size=1))
    failed = []
    nlp.set_error_handler(lambda name, proc, docs, error: failed.append((name, [doc.text for doc in docs])))
    assert [doc.text for doc in nlp.pipe(["a", "bad", "b"], batch_size=1)] == ["a", "b"]
    assert failed == [("elmo", ["bad"])]


def test_same_vectors_alone_in_any_batch_and_in_any_order(nlp: Language):
    alone = {text: nlp(text)._.elmo for text in TEXTS}
    for texts in (TEXTS, TEXTS[::-1], TEXTS * 2):
        for batch_size in (1, 3, 100):
            for doc in nlp.pipe(texts, batch_size=batch_size):
                np.testing.assert_allclose(doc._.elmo, alone[doc.text], atol=1e-5)


def test_same_vectors_when_asked_again(nlp: Language):
    first = nlp("they paid the bank")._.elmo
    nlp("something else in between")
    np.testing.assert_array_equal(nlp("they paid the bank")._.elmo, first)


def test_threads_share_a_pipe_that_is_not_loaded_yet(make_nlp, nlp: Language):
    fresh = make_nlp()
    expected = {text: nlp(text)._.elmo for text in TEXTS}
    wrong: list[str] = []

    def work(texts: list[str]) -> None:
        for text in texts * 5:
            if not np.allclose(fresh(text)._.elmo, expected[text], atol=1e-5):
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(TEXTS[n % 3 :] + TEXTS[: n % 3],)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_update_of_a_frozen_pipe_changes_nothing(make_nlp):
    nlp = make_nlp()
    before = nlp("a bank")._.elmo
    optimizer = nlp.initialize()
    examples = [Example.from_dict(nlp.make_doc(text), {}) for text in ("a bank", "")]
    losses = nlp.update(examples, sgd=optimizer, drop=0.5)
    assert losses == {"elmo": 0.0}
    np.testing.assert_array_equal(nlp("a bank")._.elmo, before)


def test_pipe_trains_beside_others(make_nlp):
    nlp = make_nlp()
    tagger = nlp.add_pipe("tagger")
    examples = [Example.from_dict(nlp.make_doc("a bank"), {"tags": ["D", "N"]})]
    optimizer = nlp.initialize(lambda: examples)
    assert tagger.labels == ("D", "N")
    losses = nlp.update(examples, sgd=optimizer, annotates=["elmo"])
    assert losses["elmo"] == 0.0 and losses["tagger"] > 0
    with nlp.use_params(optimizer.averages):
        assert nlp("a bank")._.elmo.shape == (2, 16)


def test_labels_are_refused(nlp: Language):
    with pytest.raises(PipelineError, match="E307.*PERSON"):
        nlp.get_pipe("elmo").add_label("PERSON")


def test_missing_source_is_a_coded_error_at_first_use(tmp_path: Path):
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"source": str(tmp_path / "gone")}})
    for use in (lambda: nlp("a"), nlp.initialize, nlp.to_bytes):
        with pytest.raises(WeightsError, match="E170.*gone"):
            use()


def test_impossible_layer_weights_are_refused_later_if_the_weights_come_later(nlp: Language, tmp_path: Path):
    late = spacy.blank("en")
    late.add_pipe("elmo", config={"model": {"source": str(tmp_path / "gone")}, "layer_weights": 3})
    with pytest.raises(ConfigError, match="E300.*layer_weights"):
        late.from_bytes(nlp.to_bytes())


def test_analyze_pipes_shows_what_is_assigned(nlp: Language):
    analysis = nlp.analyze_pipes()
    assert set(analysis["summary"]["elmo"]["assigns"]) == {
        "doc._.elmo", "doc._.elmo_layers", "span._.elmo", "token._.elmo", "doc.tensor",
    }  # fmt: skip
    assert analysis["problems"]["elmo"] == []


def test_config_survives_its_text(make_nlp):
    nlp = make_nlp(
        {"@misc": "spacy_elmo.strided_spans.v1", "window": 4, "stride": 2}, layer_weights=[1, 2, 3], half=True
    )
    text = nlp.config.to_str()
    assert Config().from_str(text, interpolate=False) == nlp.config
    again = spacy.util.load_model_from_config(Config().from_str(text), auto_fill=True)
    np.testing.assert_allclose(again("a bank there, so")._.elmo, nlp("a bank there, so")._.elmo, atol=1e-6)


def test_filled_config_names_every_setting():
    config = spacy.util.load_model_from_config(
        {"nlp": {"lang": "en", "pipeline": ["elmo"]}, "components": {"elmo": {"factory": "elmo"}}}, auto_fill=True
    ).config
    elmo = config["components"]["elmo"]
    assert elmo["model"].pop("get_spans") == {"@misc": "spacy_elmo.sentence_spans.v1", "max_words": None}
    assert elmo.pop("model") == {
        "@architectures": "spacy_elmo.BiLM.v1",
        "source": None,
        "max_batch_words": 8192,
        "initial_state": None,
        "dtype": "float32",
    }
    assert elmo == {
        "factory": "elmo", "layer_weights": None, "gamma": 1.0, "store": "mixed", "half": False, "surprisal": False, "frozen": True,
        "lr_scale": 1.0, "max_grad_norm": 1.0, "bfloat16": False,
        "cache_bytes": 2**30, "cache_directory": None, "cache_directory_bytes": None, "cache_half": False,
    }  # fmt: skip


def test_of_two_pipes_the_last_one_writes(make_nlp, source: Path, layers_of):
    nlp = make_nlp(layer_weights=0)
    nlp.add_pipe("elmo", name="top", config={"model": {"source": str(source)}, "layer_weights": 2})
    doc = nlp("a bank")
    np.testing.assert_allclose(doc._.elmo, layers_of(["a", "bank"])[:, 2], atol=1e-6)
    np.testing.assert_array_equal(doc.tensor, doc._.elmo)


def test_disabled_pipe_writes_nothing_and_reading_says_so(nlp: Language):
    with nlp.select_pipes(disable="elmo"):
        doc = nlp("a bank")
    with pytest.raises(PipelineError, match="E303"):
        doc._.elmo
    assert nlp("a bank")._.elmo.shape == (2, 16)


def test_pipe_can_be_sourced(nlp: Language, mixed):
    other = spacy.blank("en", vocab=nlp.vocab)
    other.add_pipe("elmo", source=nlp)
    np.testing.assert_allclose(other("a bank")._.elmo, mixed(["a", "bank"]), atol=1e-6)


def test_initial_state_of_the_config_counts(make_nlp, source: Path, mixed):
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"source": str(source), "initial_state": "canonical"}})
    assert nlp.get_pipe("elmo").bilm.config.initial_state == "canonical"
    assert not np.allclose(nlp("a bank")._.elmo, mixed(["a", "bank"]), atol=1e-4)


def test_embedded_model_needs_no_settings_and_tells_two_banks_apart():
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo")
    doc = nlp("He sat on the bank of the river . She put her money in the bank .")
    river, money = (token._.elmo for token in doc if token.text == "bank")
    assert doc._.elmo.shape == (len(doc), nlp.get_pipe("elmo").model.get_dim("nO"))
    assert np.isfinite(doc._.elmo).all()
    assert not np.allclose(river, money, atol=1e-3)


@pytest.mark.parametrize(
    ("setting", "value"), [("gamma", 1e39), ("gamma", "a"), ("half", "maybe"), ("layer_weights", 1.5)]
)
def test_a_setting_of_the_wrong_kind_is_named(nlp: Language, setting: str, value: object) -> None:
    with pytest.raises(ValueError, match=setting):
        Elmo(nlp.vocab, nlp.get_pipe("elmo").model, **{setting: value})  # type: ignore[arg-type]
