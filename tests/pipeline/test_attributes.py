"""What becomes of the vectors when spaCy changes, cuts, joins or stores a Doc: right, or a named error."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span, Token

from spacy_elmo.errors import PipelineError
from spacy_elmo.pipeline import attributes

TEXT = "I sat on the bank and they paid"


@pytest.fixture
def doc(nlp: Language) -> Doc:
    return nlp(TEXT)


@pytest.fixture
def layered(make_nlp) -> Doc:
    return make_nlp(store="layers")(TEXT)


def same(given: np.ndarray, expected: np.ndarray) -> None:
    assert given.dtype == np.float32
    assert given.shape == expected.shape
    np.testing.assert_allclose(given, expected, atol=1e-6)


def test_vectors_of_doc_token_and_span(doc: Doc, mixed):
    expected = mixed(TEXT.split())
    same(doc._.elmo, expected)
    same(doc[4]._.elmo, expected[4])
    same(doc[2:5]._.elmo, expected[2:5].mean(axis=0))


def test_tensor_vector_and_similarity_follow(nlp: Language, doc: Doc):
    same(doc.tensor, doc._.elmo)
    same(doc.vector, doc._.elmo.mean(axis=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert doc.similarity(nlp(TEXT + " more")) != 0


def test_layers_when_stored(layered: Doc, layers_of):
    same(layered._.elmo_layers, layers_of(TEXT.split()))


def test_layers_not_stored_are_an_error_that_names_the_setting(doc: Doc):
    with pytest.raises(PipelineError, match=r"E305.*store"):
        doc._.elmo_layers


@pytest.mark.parametrize("read", [lambda doc: doc._.elmo, lambda doc: doc[0]._.elmo, lambda doc: doc[0:2]._.elmo])
def test_doc_that_never_met_the_pipe_is_an_error(nlp: Language, read):
    with pytest.raises(PipelineError, match="E303"):
        read(nlp.make_doc(TEXT))


def test_tensor_of_another_component_is_not_taken_for_elmo(nlp: Language):
    doc = nlp.make_doc(TEXT)
    doc.tensor = np.ones((len(doc), 7), dtype=np.float32)
    with pytest.raises(PipelineError, match="E303"):
        doc[0]._.elmo


def test_overwritten_tensor_changes_no_vector(doc: Doc, mixed):
    doc.tensor = np.zeros((len(doc), 16), dtype=np.float32)
    same(doc._.elmo, mixed(TEXT.split()))


def test_writing_to_a_token_vector_does_not_reach_the_doc(doc: Doc, mixed):
    vector = doc[0]._.elmo
    vector[:] = 0
    same(doc._.elmo, mixed(TEXT.split()))


def test_whitespace_is_left_out_of_the_mean(nlp: Language, mixed):
    doc = nlp("the \n bank")
    same(doc[0:3]._.elmo, mixed(["the", "bank"]).mean(axis=0))
    same(doc[1:2]._.elmo, np.zeros(16, dtype=np.float32))
    same(doc[0:0]._.elmo, np.zeros(16, dtype=np.float32))


def test_merged_token_has_the_mean_of_its_parts_and_the_rest_its_own(doc: Doc, mixed):
    expected = mixed(TEXT.split())
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[2:5])
    assert doc[2].text == "on the bank"
    same(doc[2]._.elmo, expected[2:5].mean(axis=0))
    same(doc._.elmo, np.stack([*expected[:2], expected[2:5].mean(axis=0), *expected[5:]]))
    same(doc[1:3]._.elmo, np.stack([expected[1], expected[2:5].mean(axis=0)]).mean(axis=0))


def test_merged_whitespace_is_left_out_of_the_mean(nlp: Language, mixed):
    doc = nlp("the \n bank paid")
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[0:3])
    same(doc[0]._.elmo, mixed(["the", "bank", "paid"])[:2].mean(axis=0))


def test_split_token_keeps_its_vector_in_all_parts(doc: Doc, mixed):
    expected = mixed(TEXT.split())
    with doc.retokenize() as retokenizer:
        retokenizer.split(doc[4], ["ba", "nk"], heads=[doc[4], (doc[4], 0)])
    same(doc._.elmo, expected[[0, 1, 2, 3, 4, 4, 5, 6, 7]])
    same(doc[5]._.elmo, expected[4])


def test_merge_and_split_that_keep_the_number_of_tokens(doc: Doc, mixed):
    expected = mixed(TEXT.split())
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[0:2])
        retokenizer.split(doc[4], ["ba", "nk"], heads=[doc[4], (doc[4], 0)])
    assert len(doc) == len(TEXT.split())
    same(doc[0]._.elmo, expected[:2].mean(axis=0))
    same(doc[1]._.elmo, expected[2])
    same(doc._.elmo[3:5], expected[[4, 4]])


def test_part_of_a_merged_and_split_token_has_the_mean_of_what_it_touches(doc: Doc, mixed):
    expected = mixed(TEXT.split())
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[3:5])
    with doc.retokenize() as retokenizer:
        retokenizer.split(doc[3], ["th", "e bank"], heads=[doc[3], (doc[3], 0)])
    same(doc[3]._.elmo, expected[3])
    same(doc[4]._.elmo, expected[3:5].mean(axis=0))


def test_layers_follow_retokenization(layered: Doc, layers_of):
    expected = layers_of(TEXT.split())
    with layered.retokenize() as retokenizer:
        retokenizer.merge(layered[2:5])
    same(layered._.elmo_layers[2], expected[2:5].mean(axis=0))
    same(layered._.elmo_layers[3:], expected[5:])


def test_as_doc_with_user_data(doc: Doc, mixed):
    part = doc[2:5].as_doc(copy_user_data=True)
    part.tensor = np.zeros((0,), dtype=np.float32)
    same(part._.elmo, mixed(TEXT.split())[2:5])
    same(part[1]._.elmo, mixed(TEXT.split())[3])


def test_as_doc_without_user_data(doc: Doc, mixed):
    part = doc[2:5].as_doc()
    same(part._.elmo, mixed(TEXT.split())[2:5])
    same(part[1:3]._.elmo, mixed(TEXT.split())[3:5].mean(axis=0))


def test_as_doc_without_user_data_has_no_layers_and_says_so(layered: Doc):
    with pytest.raises(PipelineError, match="E305.*copy_user_data"):
        layered[2:5].as_doc()._.elmo_layers


def test_as_doc_with_user_data_keeps_layers(layered: Doc, layers_of):
    same(layered[2:5].as_doc(copy_user_data=True)._.elmo_layers, layers_of(TEXT.split())[2:5])


def test_as_doc_of_as_doc_after_a_merge(doc: Doc, mixed):
    expected = mixed(TEXT.split())
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[2:4])
    part = doc[1:6].as_doc(copy_user_data=True)[1:3].as_doc(copy_user_data=True)
    assert [token.text for token in part] == ["on the", "bank"]
    same(part._.elmo, np.stack([expected[2:4].mean(axis=0), expected[4]]))


@pytest.mark.filterwarnings("error")
def test_from_docs(nlp: Language, mixed):
    texts = ["I sat on the bank", "", "they paid"]
    joined = Doc.from_docs([nlp(text) for text in texts])
    assert joined is not None
    same(joined._.elmo, np.concatenate([mixed(texts[0].split()), mixed(texts[2].split())]))
    same(joined[5]._.elmo, mixed(["they", "paid"])[0])


def test_from_docs_without_the_tensor(nlp: Language, mixed):
    joined = Doc.from_docs([nlp("a bank"), nlp("they paid")], exclude=["tensor"])
    assert joined is not None
    same(joined._.elmo, np.concatenate([mixed(["a", "bank"]), mixed(["they", "paid"])]))


def test_from_docs_of_parts_takes_each_word_from_its_own_text(nlp: Language, mixed):
    # The second part's text begins, so to speak, two characters into the first.
    parts = [nlp("the dog ran")[0:1].as_doc(copy_user_data=True), nlp("a dog sat")[1:3].as_doc(copy_user_data=True)]
    joined = Doc.from_docs(parts)
    assert joined is not None and joined.text == "the dog sat"
    same(joined[0]._.elmo, mixed(["the", "dog", "ran"])[0])
    same(joined._.elmo[1:], mixed(["a", "dog", "sat"])[1:])


def test_sentences_in_another_order_keep_their_vectors(nlp: Language, mixed):
    nlp_doc = Doc(
        nlp.vocab, words="He left . The dog ran . The cat sat .".split(), sent_starts=[n % 4 == 3 for n in range(11)]
    )
    first, second, third = (sentence.as_doc(copy_user_data=True) for sentence in nlp(nlp_doc).sents)
    joined = Doc.from_docs([first, third, second])
    assert joined is not None and joined[3].text == joined[7].text == "The"
    expected = [mixed(sentence.split()) for sentence in ("He left .", "The cat sat .", "The dog ran .")]
    same(joined[3]._.elmo, expected[1][0])
    same(joined._.elmo, np.concatenate(expected))


def test_from_docs_of_parts_that_cannot_be_told_apart_is_an_error(nlp: Language):
    parts = [nlp("the dog ran")[0:1].as_doc(copy_user_data=True), nlp("a dog sat")[1:3].as_doc(copy_user_data=True)]
    joined = Doc.from_docs(parts, exclude=["tensor"])
    assert joined is not None
    with pytest.raises(PipelineError, match="E304.*dog"):
        joined[1]._.elmo


def test_from_docs_with_one_that_was_not_annotated_is_an_error_there_only(nlp: Language, mixed):
    joined = Doc.from_docs([nlp("a bank"), nlp.make_doc("they paid")], exclude=["tensor"])
    assert joined is not None
    same(joined[1]._.elmo, mixed(["a", "bank"])[1])
    with pytest.raises(PipelineError, match="E304.*paid"):
        joined[3]._.elmo


def test_annotating_again_forgets_the_old_records(nlp: Language, mixed):
    joined = Doc.from_docs([nlp("a bank"), nlp("they paid")])
    assert joined is not None
    joined[2].is_sent_start = False
    again = nlp(joined)
    same(again._.elmo, mixed(["a", "bank", "they", "paid"]))
    assert sum("elmo_record" in key for key in again.user_data) == 1


def test_doc_bin_with_user_data(nlp: Language, doc: Doc, mixed):
    loaded = DocBin(store_user_data=True).from_bytes(DocBin(store_user_data=True, docs=[doc]).to_bytes())
    (read,) = loaded.get_docs(nlp.vocab)
    same(read._.elmo, mixed(TEXT.split()))
    same(read[4]._.elmo, mixed(TEXT.split())[4])


def test_doc_bin_without_user_data_is_an_error_that_names_the_remedy(nlp: Language, doc: Doc):
    (read,) = DocBin().from_bytes(DocBin(docs=[doc]).to_bytes()).get_docs(nlp.vocab)
    with pytest.raises(PipelineError, match="E303.*store_user_data=True"):
        read._.elmo


def copies(doc: Doc) -> Iterator[Doc]:
    yield Doc(doc.vocab).from_bytes(doc.to_bytes())
    yield doc.copy()
    yield pickle.loads(pickle.dumps(doc))


def test_bytes_copy_and_pickle(doc: Doc, mixed):
    for copied in copies(doc):
        same(copied._.elmo, mixed(TEXT.split()))
        same(copied[4]._.elmo, mixed(TEXT.split())[4])
        same(copied.tensor, mixed(TEXT.split()))


def test_bytes_copy_and_pickle_of_layers(layered: Doc, layers_of):
    for copied in copies(layered):
        same(copied._.elmo_layers, layers_of(TEXT.split()))


def test_retokenization_after_loading(doc: Doc, mixed):
    for copied in copies(doc):
        with copied.retokenize() as retokenizer:
            retokenizer.merge(copied[2:5])
        same(copied[2]._.elmo, mixed(TEXT.split())[2:5].mean(axis=0))


def test_empty_doc_has_no_rows(nlp: Language):
    for copied in [nlp(""), *copies(nlp(""))]:
        assert copied._.elmo.shape == (0, 16)


def test_growing_the_tensor_of_an_empty_doc_does_not_reach_the_record(nlp: Language):
    doc = nlp("")
    doc.tensor.resize((3, 16), refcheck=False)
    assert doc._.elmo.shape == (0, 16)


def test_half_is_half_as_large_and_close(make_nlp, mixed):
    doc = make_nlp(half=True, store="layers")(TEXT)
    record = doc.user_data[attributes.KEY]
    assert record["vectors"].dtype == record["layers"].dtype == np.float16
    assert doc.tensor.dtype == doc._.elmo.dtype == doc._.elmo_layers.dtype == doc[0]._.elmo.dtype == np.float32
    np.testing.assert_allclose(doc._.elmo, mixed(TEXT.split()), atol=1e-3)


def test_foreign_extension_of_the_same_name_is_not_overwritten(make_nlp):
    original = Token.remove_extension("elmo")
    try:
        Token.set_extension("elmo", default="mine")
        with pytest.raises(PipelineError, match=r"E306.*Token\._\.elmo"):
            make_nlp()
        assert Token.get_extension("elmo")[0] == "mine"
    finally:
        Token.set_extension("elmo", getter=original[2], force=True)


def test_extensions_are_there_after_the_import_without_a_pipe():
    assert Doc.has_extension("elmo") and Doc.has_extension("elmo_layers")
    assert Span.has_extension("elmo") and Token.has_extension("elmo")


def test_doc_of_another_vocabulary_reads_its_bytes(doc: Doc, mixed):
    same(Doc(spacy.blank("de").vocab).from_bytes(doc.to_bytes())._.elmo, mixed(TEXT.split()))
