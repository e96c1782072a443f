"""The models that come with the repository: their cards tell of the files beside them, and they know their language."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import spacy

import spacy_elmo
from spacy_elmo.cli.perplexity import load_scoring_model, score_files
from spacy_elmo.weights.files import sha256_of
from tests.project.test_project import PROJECT

ENGLISH, LARGER_ENGLISH = (Path(spacy_elmo.__file__).parent / "models" / name for name in ("en_elmo_sm", "en_elmo_md"))
KOREAN = PROJECT / "models" / "ko_elmo_sm"
ENGLISH_TEXT = """The city lies on the river and has many old houses .
He was born in 1945 .
In the first years of the war the army lost most of its ships .
" I do not know what you mean , " she said , and turned away from the window .
The members of the committee met again in March to vote on the new law .
It is one of the largest lakes in the country , and people come from far away to see it .
Our countries must work together if we want peace in the region .
The old man opened the door slowly and looked out into the rain .
The album was released in 1998 and sold more than two million copies .
Scientists have found that these plants grow better in warm and wet places .
"""


@pytest.mark.parametrize("model", [ENGLISH, LARGER_ENGLISH, KOREAN], ids=lambda path: path.name)
def test_the_card_tells_of_the_files_beside_it(model: Path):
    told = dict(re.findall(r"^- (\S+): sha256 `(\w+)`$", (model / "README.md").read_text("utf-8"), re.MULTILINE))
    assert set(told) == {"model.safetensors", "softmax.safetensors", "vocabulary.txt.gz"}
    assert {name: sha256_of(model / name) for name in told} == told


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (ENGLISH, ENGLISH_TEXT),
        (LARGER_ENGLISH, ENGLISH_TEXT),
        (KOREAN, "서울은 대한민국의 수도이다 .\n그는 1945년에 태어났다 .\n"),
    ],
    ids=["en", "larger-en", "ko"],
)
def test_sentences_are_likelier_than_their_words_in_disorder(model: Path, text: str, tmp_path: Path):
    shuffled = "".join(" ".join(sorted(line.split(), key=len)) + "\n" for line in text.splitlines())
    for name, content in (("text", text), ("shuffled", shuffled)):
        (tmp_path / f"{name}.txt").write_text(content, encoding="utf-8")
    scores = score_files(load_scoring_model(model), [tmp_path / "text.txt", tmp_path / "shuffled.txt"])
    for in_order, in_disorder in zip(scores[0].perplexities(), scores[1].perplexities()):
        assert in_order < in_disorder


def test_the_larger_english_model_predicts_better(tmp_path: Path):
    (tmp_path / "text.txt").write_text(ENGLISH_TEXT, encoding="utf-8")
    small, large = (
        score_files(load_scoring_model(model), [tmp_path / "text.txt"]) for model in (ENGLISH, LARGER_ENGLISH)
    )
    for of_large, of_small in zip(large[0].perplexities(), small[0].perplexities()):
        assert of_large < 0.9 * of_small


def test_the_larger_english_model_in_a_pipeline():
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"source": "en_elmo_md"}})
    doc = nlp("The bank of the river.")
    assert doc._.elmo.shape == (6, 512) and doc._.elmo.any(axis=1).all()


def test_the_korean_model_in_a_pipeline():
    nlp = spacy.blank("ko", config={"nlp": {"tokenizer": {"@tokenizers": "spacy.Tokenizer.v1"}}})
    nlp.add_pipe("elmo", config={"model": {"source": str(KOREAN)}})
    doc = nlp("서울은 대한민국의 수도이다.")
    assert [token.text for token in doc] == ["서울은", "대한민국의", "수도이다", "."]
    assert doc._.elmo.shape == (4, 256) and doc._.elmo.any(axis=1).all()
