"""A biLM that is trained along with the components that read it ends with the weights of a plain torch training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from spacy.language import Language
from spacy.training import Example
from thinc.api import Optimizer, fix_random_seed
from torch import Tensor, nn

from spacy_elmo.errors import ConfigError, PipelineError, TrainingError
from spacy_elmo.layers.shim import layer_of
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.pipeline.unfreezing import unfreeze_at
from spacy_elmo.weights.native import load_bilm
from tests.pipeline.toy_data import add_listening, make_examples, train

RATE, L2 = 0.02, 0.05
TEXTS = [["the bank paid Anna", "Anna sat"], ["the river bent", "the the"], ["Anna paid", "", "river banks sat"]]
NAMES = ("first", "second")


def tags_of(words: list[str]) -> list[str]:
    return [word[-1] for word in words]


def examples_of(nlp: Language, texts: list[str]) -> list[Example]:
    return [Example.from_dict(nlp.make_doc(text), {"tags": tags_of(text.split())}) for text in texts]


@pytest.fixture
def pipeline(make_nlp) -> Callable[..., Language]:
    """A function that makes a pipeline of an elmo pipe that is not frozen and two taggers, ready to train."""

    def make(**settings: Any) -> Language:
        fix_random_seed(0)
        nlp = make_nlp(frozen=False, **settings)
        for name in NAMES:
            add_listening(nlp, "tagger", name, l2=L2)
        examples = [eg for texts in TEXTS for eg in examples_of(nlp, texts)]
        nlp.initialize(lambda: examples)
        for index, name in enumerate(NAMES):
            # Softmax layers of spaCy begin with zeros, through which no gradient passes.
            output = nlp.get_pipe(name).model.get_ref("softmax")
            weights = np.random.default_rng(index).standard_normal(output.get_param("W").shape)
            output.set_param("W", weights.astype(np.float32))
        return nlp

    return make


class Reference(nn.Module):
    """The same in torch: a biLM, and for each tagger a mix and a softmax layer."""

    def __init__(self, nlp: Language, source: Path) -> None:
        super().__init__()
        self.bilm = load_bilm(source).requires_grad_(True)
        self.heads = nn.ModuleList(Head(nlp.get_pipe(name)) for name in NAMES)

    def loss(self, texts: list[str], skipped: str | None = None) -> Tensor:
        layers = self.bilm([text.split() for text in texts]).layers
        words = [word for text in texts for word in text.split()]
        losses = [head(layers, tags_of(words)) for head, name in zip(self.heads, NAMES) if name != skipped]
        return torch.stack(losses).sum()


class Head(nn.Module):
    def __init__(self, tagger: Any) -> None:
        super().__init__()
        mix = next(node for node in tagger.model.walk() if node.name == "scalar_mix")
        output = tagger.model.get_ref("softmax")
        parameters = {"mix": mix.get_param("W"), "gamma": mix.get_param("gamma")}
        parameters |= {"weight": output.get_param("W"), "bias": output.get_param("b")}
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(np.array(value))))
        self.labels = list(tagger.labels)

    def forward(self, layers: Tensor, tags: list[str]) -> Tensor:
        mixed = self.gamma * torch.einsum("tld,l->td", layers, self.mix.softmax(0))
        targets = torch.tensor([self.labels.index(tag) for tag in tags])
        cross_entropy = nn.functional.cross_entropy(mixed @ self.weight.t() + self.bias, targets, reduction="sum")
        return cross_entropy + L2 * (self.mix**2).sum()


def step(reference: Reference, losses: list[Tensor], max_grad_norm: float | None = None, lr_scale: Any = None) -> None:
    reference.zero_grad()
    for loss in losses:
        loss.backward()
    if max_grad_norm is not None:
        nn.utils.clip_grad_norm_(reference.bilm.parameters(), max_grad_norm)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if parameter.grad is not None:
                scale = lr_scale[layer_of(name.removeprefix("bilm."))] if lr_scale and name.startswith("bilm.") else 1.0
                parameter -= RATE * scale * parameter.grad


def sgd() -> Optimizer:
    return Optimizer(RATE, L2=0.0, beta1=0.0, beta2=0.0, grad_clip=0.0, use_averages=False)


def update_as_spacy_train_does(
    nlp: Language, batches: list[list[Example]], optimizer: Optimizer, **options: Any
) -> None:
    for batch in batches:
        nlp.update(batch, sgd=False, **options)
    for _, pipe in nlp.pipeline:
        pipe.finish_update(optimizer)


def update_at_once(nlp: Language, batches: list[list[Example]], optimizer: Optimizer, **options: Any) -> None:
    *first, last = batches
    for batch in first:
        nlp.update(batch, sgd=False, **options)
    nlp.update(last, sgd=optimizer, **options)


UPDATES = [update_as_spacy_train_does, update_at_once]
by_update = pytest.mark.parametrize("update", UPDATES)


def assert_same(nlp: Language, reference: Reference) -> None:
    expected = dict(reference.bilm.named_parameters())
    for name, weight in nlp.get_pipe("elmo").bilm.named_parameters():
        np.testing.assert_allclose(weight.detach(), expected[name].detach(), atol=1e-5, err_msg=name)
    for name, head in zip(NAMES, reference.heads):
        for mine, theirs in zip(Head(nlp.get_pipe(name)).parameters(), head.parameters()):
            np.testing.assert_allclose(mine.detach(), theirs.detach(), atol=1e-5)


@by_update
def test_weights_are_those_of_torch(pipeline, source: Path, update):
    nlp = pipeline(max_grad_norm=None)
    reference, optimizer = Reference(nlp, source), sgd()
    before = copy.deepcopy(reference.bilm.state_dict())
    for texts in TEXTS * 2:
        update(nlp, [examples_of(nlp, texts)], optimizer)
        step(reference, [reference.loss(texts)])
    assert_same(nlp, reference)
    moved = [float((before[name] - p.detach()).abs().max()) for name, p in reference.bilm.named_parameters()]
    assert min(moved) > 1e-4


@by_update
def test_gradients_of_several_batches_make_one_step(pipeline, source: Path, update):
    nlp = pipeline(max_grad_norm=None)
    reference, optimizer = Reference(nlp, source), sgd()
    for _ in range(2):
        update(nlp, [examples_of(nlp, texts) for texts in TEXTS], optimizer)
        step(reference, [reference.loss(texts) for texts in TEXTS])
    assert_same(nlp, reference)


@by_update
@pytest.mark.parametrize("skipped", NAMES)
def test_a_component_that_learns_nothing_takes_no_gradient_from_another(pipeline, source: Path, update, skipped: str):
    nlp = pipeline(max_grad_norm=None)
    reference, optimizer = Reference(nlp, source), sgd()
    for number, texts in enumerate(TEXTS * 2):
        excluded = skipped if number % 2 else None
        update(nlp, [examples_of(nlp, texts)], optimizer, exclude=[excluded])
        step(reference, [reference.loss(texts, excluded)])
    assert_same(nlp, reference)


def test_batch_in_which_nobody_learns_changes_nothing_and_disturbs_nothing(pipeline, source: Path):
    nlp = pipeline(max_grad_norm=None)
    reference, optimizer = Reference(nlp, source), sgd()
    for texts in TEXTS:
        nlp.update(examples_of(nlp, texts), sgd=optimizer, exclude=NAMES)
        nlp.update(examples_of(nlp, texts), sgd=optimizer)
        step(reference, [reference.loss(texts)])
    assert_same(nlp, reference)


@by_update
@pytest.mark.parametrize("batches", [[[texts] for texts in TEXTS], [TEXTS]], ids=["alone", "accumulated"])
def test_annotating_pipe_trains_as_well(pipeline, source: Path, update, batches: list[list[list[str]]]):
    nlp = pipeline(max_grad_norm=None)
    reference, optimizer = Reference(nlp, source), sgd()
    for batch in batches:
        update(nlp, [examples_of(nlp, texts) for texts in batch], optimizer, annotates=["elmo", "first"])
        step(reference, [reference.loss(texts) for texts in batch])
    assert_same(nlp, reference)


def test_component_alone_takes_an_optimizer(pipeline, source: Path):
    nlp = pipeline(max_grad_norm=None)
    reference, optimizer = Reference(nlp, source), sgd()
    for texts in TEXTS:
        examples = examples_of(nlp, texts)
        for _, pipe in nlp.pipeline:
            pipe.update(examples, sgd=optimizer)
        step(reference, [reference.loss(texts)])
    assert_same(nlp, reference)


@by_update
def test_norm_of_the_whole_gradient_is_bounded(pipeline, source: Path, update):
    nlp = pipeline(max_grad_norm=0.5)
    reference, optimizer = Reference(nlp, source), sgd()
    for texts in TEXTS:
        update(nlp, [examples_of(nlp, texts)], optimizer)
        step(reference, [reference.loss(texts)], max_grad_norm=0.5)
    assert_same(nlp, reference)


def test_each_layer_has_its_learning_rate(pipeline, source: Path):
    lr_scale = [0.0, 0.5, 2.0]
    nlp = pipeline(max_grad_norm=None, lr_scale=lr_scale)
    reference, optimizer = Reference(nlp, source), sgd()
    for texts in TEXTS:
        nlp.update(examples_of(nlp, texts), sgd=optimizer)
        step(reference, [reference.loss(texts)], lr_scale=lr_scale)
    assert_same(nlp, reference)


def test_layers_are_unfrozen_from_the_top_when_they_are_due(pipeline):
    nlp = pipeline()
    bilm, unfreeze, optimizer = nlp.get_pipe("elmo").bilm, unfreeze_at([1, 1, 3]), sgd()
    trained = []
    for number in range(4):
        before = {name: weight.detach().clone() for name, weight in bilm.named_parameters()}
        unfreeze(nlp, {"step": number, "epoch": 0})
        update_as_spacy_train_does(nlp, [examples_of(nlp, TEXTS[0])], optimizer)
        changed = {layer_of(name) for name, weight in bilm.named_parameters() if not torch.equal(before[name], weight)}
        trained.append(changed)
    assert trained == [set(), {1, 2}, {1, 2}, {0, 1, 2}]


def test_layers_are_unfrozen_by_epoch(pipeline):
    nlp = pipeline()
    unfreeze = unfreeze_at([0, 2], unit="epoch")
    shim = nlp.get_pipe("elmo").model.shims[0]
    unfreeze(nlp, {"step": 50, "epoch": 1})
    assert shim.lowest_trained == 2
    unfreeze(nlp, {"step": 70, "epoch": 2})
    assert shim.lowest_trained == 1


@pytest.mark.parametrize(
    "settings",
    [{"when": [2, 1]}, {"when": [0], "unit": "hour"}, {"when": [0, 0, 0, 0]}],
    ids=lambda settings: str(settings),
)
def test_impossible_unfreezing_is_refused(pipeline, settings: dict[str, Any]):
    nlp = pipeline()
    with pytest.raises(ConfigError, match="E300.*(when|unit)"):
        unfreeze_at(**settings)(nlp, {"step": 0, "epoch": 0})


def test_unfreezing_names_a_pipe_that_cannot_be_unfrozen(make_nlp):
    nlp = make_nlp()
    nlp.add_pipe("tagger")
    for component in ("elmo", "tagger", "nowhere"):
        with pytest.raises(PipelineError, match=f"E315.*{component}"):
            unfreeze_at([0], component)(nlp, {"step": 0, "epoch": 0})


def test_predictions_see_every_step(pipeline):
    nlp = pipeline()
    optimizer = sgd()
    for texts in TEXTS:
        nlp.update(examples_of(nlp, texts), sgd=optimizer)
        vectors = nlp("the bank paid")._.elmo
        with torch.no_grad():
            fresh = BiLM(nlp.get_pipe("elmo").bilm.config)
            fresh.load_state_dict(nlp.get_pipe("elmo").bilm.state_dict())
            expected = fresh.eval().requires_grad_(False)([["the", "bank", "paid"]]).layers.mean(1)
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.parametrize("look", ["vectors", "bytes", "weights", "params"])
@pytest.mark.parametrize("has_last_gradient", [True, False])
def test_overdue_step_is_made_before_anybody_looks(pipeline, source: Path, look: str, has_last_gradient: bool):
    nlp = pipeline(max_grad_norm=None)
    reference = Reference(nlp, source)
    if has_last_gradient:
        nlp.update(examples_of(nlp, TEXTS[0]), sgd=sgd(), exclude=["second"])
    else:
        # As at the end of `spacy train` with accumulate_gradient, when nobody learns from the last part of the last batch.
        nlp.update(examples_of(nlp, TEXTS[0]), sgd=False, exclude=["second"])
        nlp.update(examples_of(nlp, TEXTS[1]), sgd=False, exclude=NAMES)
        for _, pipe in nlp.pipeline:
            pipe.finish_update(sgd())
    step(reference, [reference.loss(TEXTS[0], "second")])
    elmo = nlp.get_pipe("elmo")
    if look == "vectors":
        nlp("the bank")
    elif look == "bytes":
        nlp.to_bytes()
    elif look == "params":
        with nlp.use_params({(-1, "x"): np.zeros(1)}):
            pass
    else:
        elmo.bilm
    expected = dict(reference.bilm.named_parameters())
    for name, weight in elmo.model.shims[0].bilm.named_parameters():
        np.testing.assert_allclose(weight.detach(), expected[name].detach(), atol=1e-5)


def test_averages_are_applied_and_taken_back(pipeline):
    nlp = pipeline()
    optimizer = Optimizer(0.05, L2=0.0, use_averages=True)
    for texts in TEXTS * 2:
        nlp.update(examples_of(nlp, texts), sgd=optimizer)
    elmo = nlp.get_pipe("elmo")
    shim, name = elmo.model.shims[0], "forward_lm.1.input_weight"
    live, vectors = dict(elmo.bilm.named_parameters())[name].detach().numpy().copy(), nlp("the bank")._.elmo
    with nlp.use_params(optimizer.averages):
        applied = dict(elmo.bilm.named_parameters())[name].detach().numpy().copy()
        averaged = nlp("the bank")._.elmo
    np.testing.assert_array_equal(applied, optimizer.averages[shim.id, name])
    assert np.abs(applied - live).max() > 1e-4
    assert np.abs(averaged - vectors).max() > 1e-5
    np.testing.assert_array_equal(dict(elmo.bilm.named_parameters())[name].detach().numpy(), live)
    np.testing.assert_array_equal(nlp("the bank")._.elmo, vectors)


def test_losses_tell_that_the_bilm_learns(pipeline):
    nlp = pipeline()
    assert nlp.update(examples_of(nlp, TEXTS[0]), sgd=sgd())["elmo"] > 0


def test_gradient_that_is_not_finite_is_an_error_and_no_step(pipeline):
    nlp = pipeline()
    elmo, examples = nlp.get_pipe("elmo"), examples_of(nlp, TEXTS[0])
    before = {name: weight.detach().clone() for name, weight in elmo.bilm.named_parameters()}
    elmo.update(examples)
    layers, backprop = elmo.batch.take([example.predicted for example in examples])
    backprop([layer * np.nan for layer in layers])
    with pytest.raises(TrainingError, match="E313.*'elmo'.*nan"):
        elmo.finish_update(sgd())
    assert all(torch.equal(weight, before[name]) for name, weight in elmo.bilm.named_parameters())


@pytest.mark.parametrize("frozen", [True, False])
def test_component_whose_gradient_is_not_finite_is_named(make_nlp, frozen: bool):
    nlp = make_nlp(frozen=frozen)
    add_listening(nlp, "textcat", "topic")
    examples = make_examples(nlp)
    train(nlp, examples, steps=1)
    mix = next(node for node in nlp.get_pipe("topic").model.walk() if node.name == "scalar_mix")
    mix.set_param("gamma", mix.get_param("gamma") * np.nan)
    with pytest.raises(TrainingError, match="E316.*'topic'"):
        nlp.update(examples, sgd=sgd())


def test_component_that_copies_its_docs_gives_its_gradient(make_nlp):
    nlp = make_nlp(frozen=False)
    nlp.add_pipe("sentencizer", first=True)
    add_listening(nlp, "entity_linker")
    losses = train(nlp, make_examples(nlp), steps=1, annotates=["sentencizer"])
    assert losses["elmo"] > 0


def test_docs_of_the_same_words_have_their_own_layers_and_gradients(pipeline, source: Path):
    nlp = pipeline(max_grad_norm=None)
    reference, optimizer = Reference(nlp, source), sgd()
    texts = ["Anna sat", "the bank", "Anna sat", "Anna sat"]
    nlp.update(examples_of(nlp, texts), sgd=optimizer)
    step(reference, [reference.loss(texts)])
    assert_same(nlp, reference)


def test_training_without_words_is_no_error(pipeline):
    nlp = pipeline()
    losses = nlp.update(examples_of(nlp, ["", " "]), sgd=sgd())
    assert losses["elmo"] == 0


@pytest.mark.parametrize(
    "settings", [{"lr_scale": -1.0}, {"lr_scale": [1.0, -1.0, 1.0]}, {"max_grad_norm": 0.0}], ids=str
)
def test_impossible_settings_are_refused_by_name(make_nlp, settings: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"E300.*{next(iter(settings))}"):
        make_nlp(frozen=False, **settings)


def test_too_few_rates_are_refused_in_training(pipeline):
    nlp = pipeline(lr_scale=[1.0, 1.0])
    with pytest.raises(ConfigError, match="E300.*lr_scale.*3 numbers"):
        nlp.update(examples_of(nlp, TEXTS[0]), sgd=sgd())
