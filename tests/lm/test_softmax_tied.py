from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from spacy_elmo.errors import ElmoError
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.characters import BEGIN_SENTENCE, END_SENTENCE
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.softmax import TiedSoftmax, VocabularyEncoder, build_head
from spacy_elmo.weights.formats import LoadedModel, load_model, save_model

CONFIG = BiLMConfig(character_dim=3, filters=((1, 3), (2, 6)), max_characters=9, n_highway=1, projection=4, cells=6)
WORDS = ["<S>", "</S>", "<UNK>", *(f"w{number}" for number in range(17))]
SIZES = CONFIG.projection, len(WORDS)


@pytest.fixture
def bilm() -> BiLM:
    torch.manual_seed(1)
    return BiLM(CONFIG)


@pytest.fixture
def head(bilm: BiLM) -> TiedSoftmax:
    head = TiedSoftmax(*SIZES, n_samples=5, correction=2)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    head.bind(VocabularyEncoder(bilm, WORDS))
    return head


@pytest.fixture
def hidden() -> Tensor:
    return torch.randn(6, CONFIG.projection, generator=torch.Generator().manual_seed(4))


PLACES = torch.tensor([0, 2, 3, 3, 10, 19])


def expected_weights(bilm: BiLM, head: TiedSoftmax) -> Tensor:
    vectors = bilm.encode_words([BEGIN_SENTENCE, END_SENTENCE, *WORDS[2:]])
    return vectors @ head.map + head.correction @ head.correction_map


def test_scores_are_their_formula(bilm: BiLM, head: TiedSoftmax, hidden: Tensor) -> None:
    logits = hidden @ expected_weights(bilm, head).T + head.bias
    expected = logits.log_softmax(1)[torch.arange(6), PLACES]
    torch.testing.assert_close(head(hidden, PLACES), expected)
    with head.prepared():
        torch.testing.assert_close(head(hidden, PLACES), expected.detach())


def test_training_scores_are_their_formula(bilm: BiLM, head: TiedSoftmax, hidden: Tensor) -> None:
    found = head.training_log_probabilities(hidden, PLACES, torch.Generator().manual_seed(3))
    sample = head.sampling.draw(PLACES, torch.Generator().manual_seed(3))
    drawn, _ = sample.needed.split(sample.sizes)
    logits = hidden @ expected_weights(bilm, head).T + head.bias
    everywhere = head.sampling.sampler.log_expected(
        torch.arange(len(WORDS)), head.sampling.sampler.draw(5, torch.Generator().manual_seed(3)).tries
    )
    corrected = logits - everywhere
    for place, word in enumerate(PLACES.tolist()):
        others = [other for other in drawn.tolist() if other != word]
        among = corrected[place, [word, *others]]
        torch.testing.assert_close(found[place], among.log_softmax(0)[0])


def test_gradients_reach_head_and_encoder(bilm: BiLM, head: TiedSoftmax, hidden: Tensor) -> None:
    head.training_log_probabilities(hidden, PLACES, torch.Generator().manual_seed(3)).sum().backward()
    for name, parameter in [*bilm.encoder.named_parameters(), *head.named_parameters()]:
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_exact_scores_have_gradients_too(bilm: BiLM, head: TiedSoftmax, hidden: Tensor) -> None:
    head(hidden, PLACES).sum().backward()
    assert bilm.encoder.characters.grad.abs().sum() > 0


def test_weights_are_never_stale(bilm: BiLM, head: TiedSoftmax, hidden: Tensor) -> None:
    """A fused optimizer changes weights in place, unseen by torch's counter of versions."""
    parameters = [*bilm.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.1, fused=True)
    with head.prepared():
        before = head(hidden, PLACES)
    head.training_log_probabilities(hidden, PLACES, torch.Generator().manual_seed(3)).sum().backward()
    optimizer.step()
    logits = hidden @ expected_weights(bilm, head).T + head.bias
    expected = logits.log_softmax(1)[torch.arange(6), PLACES].detach()
    with torch.no_grad():
        torch.testing.assert_close(head(hidden, PLACES), expected)
    with head.prepared():
        torch.testing.assert_close(head(hidden, PLACES), expected)
    assert not torch.allclose(before, expected, atol=0.01)


def test_no_training_where_weights_are_computed_once(head: TiedSoftmax, hidden: Tensor) -> None:
    with head.prepared(), pytest.raises(ElmoError, match="E024"):
        head.training_log_probabilities(hidden, PLACES)
    head.training_log_probabilities(hidden, PLACES)


def test_prepared_encodes_once(bilm: BiLM, head: TiedSoftmax, hidden: Tensor) -> None:
    calls: list[int] = []
    encode = VocabularyEncoder(bilm, WORDS)

    def counted(ids: list[int]) -> Tensor:
        calls.append(len(ids))
        return encode(ids)

    head.bind(counted)
    with head.prepared():
        head(hidden, PLACES)
        head(hidden, PLACES)
    assert calls == [len(WORDS)]


def test_only_words_that_are_needed_are_encoded(bilm: BiLM, head: TiedSoftmax, hidden: Tensor) -> None:
    seen: list[int] = []
    encode = VocabularyEncoder(bilm, WORDS)

    def noted(ids: list[int]) -> Tensor:
        seen.extend(ids)
        return encode(ids)

    head.bind(noted)
    head.training_log_probabilities(hidden, PLACES, torch.Generator().manual_seed(3))
    sample = head.sampling.draw(PLACES, torch.Generator().manual_seed(3))
    drawn, _ = sample.needed.split(sample.sizes)
    assert sorted(seen) == sorted({*drawn.tolist(), *PLACES.tolist()})


def test_without_correction(bilm: BiLM, hidden: Tensor) -> None:
    head = TiedSoftmax(*SIZES, correction=0)
    head.bind(VocabularyEncoder(bilm, WORDS))
    logits = hidden @ (bilm.encode_words([BEGIN_SENTENCE, END_SENTENCE, *WORDS[2:]]) @ head.map).T
    torch.testing.assert_close(head(hidden, PLACES), logits.log_softmax(1)[torch.arange(6), PLACES])
    assert [name for name, _ in head.named_parameters()] == ["map", "bias"]


def test_most_of_a_vocabulary_is_not_drawn_but_used_in_full(bilm: BiLM, hidden: Tensor) -> None:
    head = TiedSoftmax(*SIZES)
    head.bind(VocabularyEncoder(bilm, WORDS))
    assert torch.equal(head.training_log_probabilities(hidden, PLACES), head(hidden, PLACES))


def test_an_unbound_head(hidden: Tensor) -> None:
    head = TiedSoftmax(*SIZES, n_samples=5)
    for score in (head, head.training_log_probabilities):
        with pytest.raises(ElmoError, match="E021"):
            score(hidden, PLACES)
    with pytest.raises(ElmoError, match="E021"), head.prepared():
        pass


def test_it_does_not_own_the_encoder(head: TiedSoftmax) -> None:
    names = {"map", "bias", "correction", "correction_map"}
    assert {name for name, _ in head.named_parameters()} == names == set(head.state_dict())


@pytest.mark.parametrize("distribution", ["log-uniform", "unigram"])
def test_from_disk_it_is_bound_and_scores_the_same(
    bilm: BiLM, hidden: Tensor, tmp_path: Path, distribution: str
) -> None:
    head = TiedSoftmax(*SIZES, n_samples=5, distribution=distribution, correction=2)
    torch.nn.init.normal_(head.correction)
    head.set_counts(range(1, len(WORDS) + 1))
    head.bind(VocabularyEncoder(bilm, WORDS))
    save_model(LoadedModel(bilm, head, WORDS), tmp_path / "model")
    loaded = load_model(tmp_path / "model", with_softmax=True)
    assert loaded.head is not None and loaded.head.settings == head.settings
    with torch.no_grad():
        assert torch.equal(loaded.head(hidden, PLACES), head(hidden, PLACES))
        seeds = (torch.Generator().manual_seed(2) for _ in range(2))
        one, other = (part.training_log_probabilities(hidden, PLACES, next(seeds)) for part in (head, loaded.head))
    assert torch.equal(one, other)


def test_settings_build_the_same_head(head: TiedSoftmax) -> None:
    again = build_head(head.settings)
    again.load_state_dict(head.state_dict())
    assert again.settings == head.settings
