from __future__ import annotations

import pytest
import torch

from spacy_elmo.errors import ConfigError
from spacy_elmo.lm import output_head
from spacy_elmo.lm.softmax import AdaptiveSoftmax, FullSoftmax, build_head

PROJECTION, N_WORDS = 8, 23


def heads():
    torch.manual_seed(0)
    return [
        FullSoftmax(PROJECTION, N_WORDS),
        AdaptiveSoftmax(PROJECTION, N_WORDS, [5], shrink=2),
        AdaptiveSoftmax(PROJECTION, N_WORDS, [1, 7, 22], shrink=4.0),
    ]


@pytest.fixture(params=range(3))
def head(request):
    return heads()[request.param].double()


@pytest.fixture
def hidden():
    return torch.randn(6, PROJECTION, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def over_vocabulary(head, hidden):
    """(places, words): the log-probability of every word at every place."""
    places = hidden.repeat_interleave(N_WORDS, 0)
    return head(places, torch.arange(N_WORDS).repeat(len(hidden))).view(len(hidden), N_WORDS)


def test_probabilities_sum_to_one(head, hidden):
    total = over_vocabulary(head, hidden).exp().sum(1)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_full_softmax_is_its_formula(hidden):
    head = heads()[0].double()
    expected = (hidden @ head.output.weight.T + head.output.bias).log_softmax(1)
    torch.testing.assert_close(over_vocabulary(head, hidden), expected)


def test_adaptive_softmax_is_its_formula(hidden):
    """p(word) = p(word's cluster) · p(word | cluster), a frequent word being its own cluster (Grave et al. 2017, eq. 4)."""
    head = heads()[2].double()
    first = (hidden @ head.head.weight.T + head.head.bias).log_softmax(1)
    parts = [first[:, :1]]
    for cluster, (narrow, wide) in enumerate(head.tails):
        within = (hidden @ narrow.weight.T @ wide.weight.T).log_softmax(1)
        parts.append(first[:, 1 + cluster, None] + within)
    torch.testing.assert_close(over_vocabulary(head, hidden), torch.cat(parts, 1))


def test_a_batch_without_rare_words(hidden):
    head = heads()[2].double()
    words = torch.zeros(len(hidden), dtype=torch.long)
    head(hidden, words).sum().backward()
    torch.testing.assert_close(head(hidden, words), over_vocabulary(head, hidden)[:, 0])


def test_no_places(head):
    assert head(torch.zeros(0, PROJECTION, dtype=torch.float64), torch.zeros(0, dtype=torch.long)).shape == (0,)


def test_scores_in_pieces_are_the_same(hidden, monkeypatch):
    head = heads()[0].double()
    words = torch.arange(len(hidden))
    expected = head(hidden, words).detach()
    monkeypatch.setattr(output_head, "_MOST_LOGITS", 2 * N_WORDS)
    with torch.no_grad():
        torch.testing.assert_close(head(hidden, words), expected)


def test_settings_build_the_same_head(head, hidden):
    again = build_head(head.settings).double()
    again.load_state_dict(head.state_dict())
    assert torch.equal(over_vocabulary(again, hidden), over_vocabulary(head, hidden))


@pytest.mark.parametrize("cutoffs", [[], [0, 5], [5, 5], [7, 5], [5, N_WORDS], 5, ["5"], None])
def test_cutoffs_that_cannot_be(cutoffs):
    with pytest.raises(ConfigError, match="E001.*cutoffs"):
        AdaptiveSoftmax(PROJECTION, N_WORDS, cutoffs)


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "sampled"},
        {"kind": "full", "projection": 4, "n_words": 9, "n_samples": 3},
        {"kind": ["full"]},
        {},
        {"kind": "full", "projection": 0, "n_words": 5},
        {"kind": "full", "projection": 4, "n_words": "5"},
        {"kind": "full", "projection": 4, "n_words": True},
        {"kind": "adaptive", "projection": 4, "n_words": 9, "cutoffs": [3], "shrink": 0},
        {"kind": "sampled", "projection": 4, "n_words": 9, "n_samples": 0},
        {"kind": "sampled", "projection": 4, "n_words": 9, "distribution": "zipf"},
        {"kind": "tied", "projection": 4, "n_words": 9, "correction": -1},
        {"kind": "tied", "projection": 4, "n_words": 9, "distribution": 1},
    ],
)
def test_settings_that_cannot_be(settings):
    with pytest.raises(ConfigError, match="E001"):
        build_head(settings)
