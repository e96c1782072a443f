"""The recipes: that of bilm-tf number by number, from a first weight to a perplexity."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.softmax import build_head
from spacy_elmo.lm.word_sampling import WordSampler
from spacy_elmo.pretraining.corpus import Corpus, find_shards
from spacy_elmo.pretraining.head_settings import head_settings
from spacy_elmo.pretraining.learner import Learner
from spacy_elmo.pretraining.loop import Run
from spacy_elmo.pretraining.optimization import learning_rate
from spacy_elmo.pretraining.presets import PRESETS, PresetName
from spacy_elmo.pretraining.settings import TrainingSettings
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.weights.modules import shapes_only
from spacy_elmo.weights.native import read_config
from tests.pretraining.small_runs import trained, write_corpus

CPU = torch.device("cpu")


def of_preset(name: PresetName, **changes: Any) -> tuple[BiLMConfig, TrainingSettings]:
    preset = PRESETS[name]
    return BiLMConfig.from_dict(preset["bilm"]), TrainingSettings.from_dict({**preset["training"], **changes})


@pytest.mark.parametrize("name", get_args(PresetName))
def test_every_preset_can_be(name: PresetName) -> None:
    config, settings = of_preset(name)
    assert config.token_encoder == "characters"
    with shapes_only():
        BiLM(config)
        head = build_head(head_settings(settings.softmax, config.projection, settings.vocabulary_size))
    assert head.settings["n_words"] == settings.vocabulary_size


def test_presets_are_all_that_are_named() -> None:
    assert set(PRESETS) == set(get_args(PresetName))
    assert all(preset.keys() == {"bilm", "training"} for preset in PRESETS.values())


def test_the_model_of_2018() -> None:
    """The published one: 93.6 million parameters, without softmax."""
    config, _ = of_preset("elmo-2018")
    with shapes_only():
        parameters = sum(parameter.numel() for parameter in BiLM(config).parameters())
    assert parameters == 93_600_848
    assert (config.width, config.n_outputs, config.max_characters) == (1024, 3, 50)
    assert (config.cell_clip, config.projection_clip, config.skip_connections) == (3, 3, True)


def test_the_training_of_2018() -> None:
    _, settings = of_preset("elmo-2018")
    # 128 streams of 20 words on each of 3 GPUs, 7,680 words a step.
    assert (settings.streams, settings.unroll, settings.parts, settings.objective) == (128, 20, 3, "streams")
    assert (settings.optimizer, settings.weight_decay, settings.layer_rate_decay) == ("adagrad", 0, 1)
    assert {learning_rate(done, step, settings) for done, step in ((0, 0), (0.5, 10**5), (1, 10**6))} == {0.2}
    assert (settings.loss_scale, settings.max_gradient_norm) == (settings.unroll, 10)
    assert (settings.dropout, settings.variational_dropout, settings.epochs) == (0.1, False, 10)
    assert settings.softmax == {"kind": "sampled", "n_samples": 8192, "distribution": "log-uniform"}
    assert settings.head_steps == 0 and settings.plateau_factor == 1 and settings.precision == "float32"


def test_the_small_preset_has_the_shape_of_the_embedded_model() -> None:
    import spacy_elmo

    embedded = read_config(Path(spacy_elmo.__file__).parent / "models" / "en_elmo_sm")
    assert of_preset("small")[0] == embedded


def test_nothing_keeps_the_base_preset_from_the_fused_recurrence() -> None:
    config, settings = of_preset("base")
    with shapes_only():
        BiLM(config).set_recurrence("fused")
    assert settings.recurrence == settings.precision == "fastest"


# First weights, as bilm-tf draws them.


def assert_normal(values: Tensor, deviation: float) -> None:
    assert abs(values.mean().item()) < 5 * deviation / math.sqrt(values.numel())
    assert values.std().item() == pytest.approx(deviation, rel=0.05)
    # A third beyond one deviation; nothing of that is so of values drawn evenly.
    assert (values.abs() > deviation).float().mean().item() == pytest.approx(0.3173, abs=0.03)
    assert values.abs().max() > 2.4 * deviation


def assert_even(values: Tensor, bound: float) -> None:
    assert values.abs().max() <= bound and values.abs().max() > 0.97 * bound
    assert abs(values.mean().item()) < 5 * bound / math.sqrt(3 * values.numel())
    assert (values.abs() > bound / 2).float().mean().item() == pytest.approx(0.5, abs=0.04)


@pytest.fixture(scope="module", params=["relu", "tanh"])
def drawn(request: pytest.FixtureRequest) -> BiLM:
    config = BiLMConfig(
        character_dim=16, filters=((1, 40), (3, 60)), activation=request.param, projection=48, cells=120, n_highway=2
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return BiLM(config)


def test_first_weights_of_characters_and_convolutions(drawn: BiLM) -> None:
    assert_even(drawn.encoder.characters.detach(), 1)
    for convolution in drawn.encoder.convolutions:
        weight = convolution.weight.detach()
        if drawn.config.activation == "relu":
            assert_even(weight, 0.05)
        else:
            assert_normal(weight, 1 / math.sqrt(convolution.width * 16))
        assert not convolution.bias.any()


def test_first_weights_of_highways_and_projections(drawn: BiLM) -> None:
    for highway in drawn.encoder.highways:
        for weight in (highway.transform_weight, highway.gate_weight):
            assert_normal(weight.detach(), 1 / math.sqrt(100))
        assert not highway.transform_bias.any() and (highway.gate_bias == -2).all()
    assert_normal(drawn.encoder.projection.weight.detach(), 1 / math.sqrt(100))
    assert not drawn.encoder.projection.bias.any()


def test_first_weights_of_lstms(drawn: BiLM) -> None:
    """TensorFlow draws one kernel for input and recurrence, by the sum of its rows and columns."""
    for layer in (*drawn.forward_lm, *drawn.backward_lm):
        bound = math.sqrt(6 / ((48 + 48) + 4 * 120))
        assert_even(layer.input_weight.detach(), bound)
        assert_even(layer.recurrent_weight.detach(), bound)
        assert_even(layer.projection_weight.detach(), math.sqrt(6 / (120 + 48)))
        assert not layer.bias.any()  # the forget bias of 1 is added when the layer runs


def test_both_directions_are_drawn_by_themselves(drawn: BiLM) -> None:
    kernels = [layer.input_weight for layer in (*drawn.forward_lm, *drawn.backward_lm)]
    assert len({kernel.sum().item() for kernel in kernels}) == 4


def test_first_weights_of_the_softmax() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        head = build_head({"kind": "sampled", "projection": 64, "n_words": 500})
    weight, bias = (parameter.detach() for parameter in head.parameters())
    assert_normal(weight, 1 / math.sqrt(64))
    assert weight.shape == (500, 64) and not bias.any()


def test_samples_are_drawn_as_by_tensorflow() -> None:
    """P(k) = (log(k + 2) − log(k + 1)) / log(V + 1), and 1 − (1 − P)^tries of a word in a sample without repetition."""
    sampler = WordSampler("log-uniform", 1000)
    words, tries = torch.tensor([0, 1, 500, 999]), 37
    probabilities = [(math.log(k + 2) - math.log(k + 1)) / math.log(1001) for k in words.tolist()]
    expected = [math.log(1 - (1 - p) ** tries) for p in probabilities]
    assert sampler.log_expected(words, tries).tolist() == pytest.approx(expected, rel=1e-4)


# End to end.


def train_by_heart(directory: Path, fixtures_dir: Path) -> tuple[float, Run]:
    """The run of bilm-tf's own test: 16 cells, a projection to 8, 16 negatives, windows of 10 words, 2 streams, 50 epochs,
    gradients of a norm of 1 at most."""
    text = find_shards([fixtures_dir / "bilm-tf" / "train" / "data.txt"])
    vocabulary = Vocabulary.load(fixtures_dir / "bilm-tf" / "train" / "vocab.txt")
    filters = ((1, 8), (2, 8), (3, 16), (4, 32), (5, 64))
    config = BiLMConfig.from_dict(
        {**PRESETS["elmo-2018"]["bilm"], "filters": filters, "character_dim": 4, "projection": 8, "cells": 16}
    )
    _, settings = of_preset(
        "elmo-2018",
        epochs=50,
        unroll=10,
        batch_words=20,
        parts=1,
        loss_scale=10.0,
        max_gradient_norm=1.0,
        softmax={"kind": "sampled", "n_samples": 16},
    )
    held_out = {"other": list(Corpus(text).sentences())}
    run = Run(directory, config, settings, text, held_out, CPU, vocabulary=vocabulary)
    run.begin(resume=False)
    before = run.evaluate()
    run.train()
    assert before is not None
    return before.joint, run


@pytest.mark.slow
def test_the_text_of_bilm_tf_is_learnt_by_heart(tmp_path: Path, fixtures_dir: Path) -> None:
    before, run = train_by_heart(tmp_path, fixtures_dir)
    assert run.held_out.last is not None
    found = run.held_out.last.perplexity
    assert before > 28 and found.joint < 20 and max(found.forward, found.backward) < 20


def test_a_run_of_the_recipe_goes_on_where_it_was(tmp_path: Path) -> None:
    text = write_corpus(tmp_path / "text")
    changes = {**PRESETS["elmo-2018"]["training"], "unroll": 5, "batch_words": 40, "parts": 1, "epochs": 1}
    changes |= {"min_count": 1, "vocabulary_size": 60, "softmax": {"kind": "sampled", "n_samples": 10}}
    trained(tmp_path / "whole", text, **changes)
    taught: list[int] = []

    def stopping(self: Learner, *arguments: Any, learn: Any = Learner.learn) -> None:
        taught.append(arguments[2])
        if len(taught) == 13:
            raise KeyboardInterrupt
        learn(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "learn", stopping)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "parted", text, **changes)
    trained(tmp_path / "parted", text, resume=True, **changes)
    for name in ("model.safetensors", "softmax.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parted" / name).read_bytes()


def test_unigram_samples_follow_the_counts_of_the_text(tmp_path: Path) -> None:
    text = write_corpus(tmp_path / "text")
    softmax = {"kind": "sampled", "n_samples": 5, "distribution": "unigram"}
    run = trained(tmp_path / "run", text, softmax=softmax)
    counts = run.learner.head.sampling.counts  # type: ignore[union-attr]
    sentences = list(Corpus(find_shards([text])).sentences())
    assert counts[0] == counts[1] == len(sentences)
    spelled = [word for sentence in sentences for word in sentence]
    for word in ("w0", "w7", "w39"):
        assert counts[run.vocabulary.id_of(word)] == spelled.count(word)
