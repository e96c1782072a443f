"""What the elmo pipe writes to a Doc, and the attributes `._.elmo`, `._.elmo_layers` and `._.elmo_surprisal`, which read it.

A Doc has one record of all its vectors in `doc.user_data`. Its key has the form of an attribute of a token at character
0, so that spaCy keeps it, shifted by characters, in `Doc.from_docs` and `Span.as_doc(copy_user_data=True)`, which drop
attributes of a Doc. Vectors are found by character offset and text, so that they outlive `Doc.retokenize`: a merged
token has the mean of its parts, a split one that of the token it was part of. A vector that cannot be told for sure is
an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from spacy.attrs import IDX, LENGTH
from spacy.tokens import Doc, Span, Token

from ..errors import Errors, PipelineError

RECORD = "elmo_record"
KEY = ("._.", RECORD, 0, None)

Record = dict[str, Any]
"""vectors: float32 or float16, (tokens, width). layers, optional: (tokens, layers, width). offsets, lengths: (tokens,),
in characters. text: str, of the whole Doc."""

SURPRISAL_KEY = ("._.", "elmo_surprisal_record", 0, None)
"""A record of its own: it has no use for `doc.tensor`, and is kept where vectors are not. values: float32, (tokens, 2), in bits;
offsets, lengths, text: as in the other."""

_widths: set[int] = set()
"""Widths of the elmo pipes of this process. Without a record, a `doc.tensor` of another width cannot be ours."""


def note_width(width: int) -> None:
    """Remember the width of an elmo pipe.

    width (int): Width of its vectors.
    """
    _widths.add(width)


def annotate(doc: Doc, vectors: np.ndarray, layers: np.ndarray | None, half: bool, leaves_tensor: bool = False) -> None:
    """Write vectors to a Doc, in place of those it has.

    doc (Doc): The Doc, which takes the arrays for its own.
    vectors (ndarray): float32, (tokens, width).
    layers (ndarray | None): float32, (tokens, layers, width), if they are to be kept.
    half (bool): Keep float16, except in `doc.tensor`.
    leaves_tensor (bool): Leave `doc.tensor` as it is.
    """
    dtype = np.float16 if half else np.float32
    offsets, lengths = _positions(doc)
    kept = vectors.astype(dtype, copy=False)
    record: Record = {"vectors": kept, "offsets": offsets, "lengths": lengths, "text": doc.text}
    if layers is not None:
        record["layers"] = layers.astype(dtype, copy=False)
    user_data = _user_data(doc)
    _replace(user_data, KEY, record)
    if not leaves_tensor:
        # spaCy resizes an empty tensor in place, so that one must not be shared with the record.
        doc.tensor = kept.astype(np.float32, copy=not len(doc))
    note_width(vectors.shape[1])


def annotate_surprisal(doc: Doc, surprisal: np.ndarray) -> None:
    """Write surprisal to a Doc, in place of what it has.

    doc (Doc): The Doc, which takes the array for its own.
    surprisal (ndarray): float32, (tokens, 2), in bits.
    """
    offsets, lengths = _positions(doc)
    record = {"values": surprisal, "offsets": offsets, "lengths": lengths, "text": doc.text}
    _replace(_user_data(doc), SURPRISAL_KEY, record)


def doc_vectors(doc: Doc) -> np.ndarray:
    """RETURNS (ndarray): float32, (tokens, width). Copy it before you write to it.

    RAISES (PipelineError): E303 if the Doc has no vectors, E304 if a token has none.
    """
    return _whole(doc, "vectors")


def doc_layers(doc: Doc) -> np.ndarray:
    """RETURNS (ndarray): float32, (tokens, layers, width). Copy it before you write to it.

    RAISES (PipelineError): E303 if the Doc has no vectors, E304 if a token has none, E305 if layers were not stored.
    """
    return _whole(doc, "layers")


def token_vector(token: Token) -> np.ndarray:
    """RETURNS (ndarray): float32, (width,). Zeros for a whitespace token.

    RAISES (PipelineError): E303 if the Doc has no vectors, E304 if the token has none.
    """
    doc: Doc = token.doc
    record = _user_data(doc).get(KEY)
    if record is not None:
        index, start, length = token.i, token.idx, len(token)
        if doc.tensor is record["vectors"]:
            # spaCy makes a new tensor whenever it changes the tokens: this Doc is as it was annotated.
            return cast(np.ndarray, record["vectors"][index].copy())
        if _has_a_row_for_each_token(doc, record):
            is_same = record["offsets"][index] == start and record["lengths"][index] == length
            if is_same and record["text"][start : start + length] == token.text:
                return cast(np.ndarray, record["vectors"][index].astype(np.float32))
    return _search(token, _records(doc), "vectors")


def span_vector(span: Span) -> np.ndarray:
    """RETURNS (ndarray): float32, (width,): the mean of its tokens, whitespace left out; zeros if nothing is left.

    RAISES (PipelineError): E303 if the Doc has no vectors, E304 if a token has none.
    """
    rows = [token_vector(token) for token in span if not token.is_space]
    if not rows:
        return np.zeros(_shape(span.doc, _records(span.doc), "vectors"), dtype=np.float32)
    return cast(np.ndarray, np.mean(rows, axis=0, dtype=np.float32))


def token_surprisal(token: Token) -> np.ndarray:
    """How unexpected a token is to the language model, in bits: from its left, and from its right.

    Zeros for a whitespace token, which is no word. A token that was merged has the sum of its parts; one that was split off has
    NaN, and so has one that the span getter left out.

    RETURNS (ndarray): float32, (2,).
    RAISES (PipelineError): E372 if the Doc has no surprisal, E373 if it cannot be told which is the token's.
    """
    if token.is_space:
        return np.zeros(2, dtype=np.float32)
    records = _records(token.doc, SURPRISAL_KEY)
    if not records:
        raise PipelineError(Errors.E372)
    found = [_sum(record, token.idx - base, token.text) for base, record in records]
    values = [value for value in found if value is not None]
    if not values or any(not np.array_equal(values[0], value, equal_nan=True) for value in values[1:]):
        raise PipelineError(Errors.E373.format(index=token.i, text=token.text))
    return values[0]


def doc_surprisal(doc: Doc) -> np.ndarray:
    """RETURNS (ndarray): float32, (tokens, 2), in bits: each token's surprisal, see `token_surprisal`. Copy it before you write to
    it.

    RAISES (PipelineError): E372 if the Doc has no surprisal, E373 if it cannot be told which is a token's.
    """
    records = _records(doc, SURPRISAL_KEY)
    if not records:
        raise PipelineError(Errors.E372)
    base, record = records[0]
    if len(records) == 1 and base == 0 and _is_of_same_tokens(doc, record):
        return cast(np.ndarray, record["values"])
    return np.array([token_surprisal(token) for token in doc], dtype=np.float32).reshape(len(doc), 2)


_EXTENSIONS: tuple[tuple[type, str, Callable[[Any], np.ndarray]], ...] = (
    (Doc, "elmo", doc_vectors),
    (Doc, "elmo_layers", doc_layers),
    (Doc, "elmo_surprisal", doc_surprisal),
    (Span, "elmo", span_vector),
    (Token, "elmo", token_vector),
    (Token, "elmo_surprisal", token_surprisal),
)


def register() -> None:
    """Make the attributes known to spaCy, once.

    RAISES (PipelineError): E306 if an attribute of that name exists that is not ours.
    """
    register_where_free()
    for holder, name, getter in _EXTENSIONS:
        if holder.get_extension(name)[2] is not getter:  # type: ignore[attr-defined]
            raise PipelineError(Errors.E306.format(holder=holder.__name__, name=name))


def register_where_free() -> None:
    """Make those attributes known to spaCy whose names are not taken."""
    for holder, name, getter in _EXTENSIONS:
        if not holder.has_extension(name):  # type: ignore[attr-defined]
            holder.set_extension(name, getter=getter)  # type: ignore[attr-defined]


def _whole(doc: Doc, field: str) -> np.ndarray:
    record = _user_data(doc).get(KEY)
    if record is not None and field in record and doc.tensor is record["vectors"]:
        return cast(np.ndarray, record[field])
    if record is not None and field in record and _has_a_row_for_each_token(doc, record):
        if _is_of_same_tokens(doc, record):
            return cast(np.ndarray, record[field].astype(np.float32, copy=False))
    records = _records(doc)
    shape = _shape(doc, records, field)
    whole = np.zeros((len(doc), *shape), dtype=np.float32)
    for row, token in zip(whole, doc):
        row[...] = _search(token, records, field)
    return whole


def _is_of_same_tokens(doc: Doc, record: Record) -> bool:
    offsets, lengths = _positions(doc)
    is_same = np.array_equal(record["offsets"], offsets) and np.array_equal(record["lengths"], lengths)
    return is_same and record["text"] == doc.text


def _has_a_row_for_each_token(doc: Doc, record: Record) -> bool:
    """Whether the record may be that of this very Doc: it is the only one, and has the right number of rows."""
    if len(record["offsets"]) != len(doc):
        return False
    user_data = _user_data(doc)
    return len(user_data) == 1 or sum(map(_is_record, user_data)) == 1


def _search(token: Token, records: list[tuple[int, Record]], field: str) -> np.ndarray:
    """The values of one token, where the Doc is not, token by token, the one that was annotated."""
    shape = _shape(token.doc, records, field)
    if token.is_space:
        return np.zeros(shape, dtype=np.float32)
    found = []
    for base, record in records:
        rows = _rows(record, token.idx - base, token.text)
        if rows:
            found.append([_mean(record, name, rows) for name in ("vectors", field)])
    row = _tensor_row(token)
    if len(found) > 1 and any(not np.array_equal(found[0][0], vector) for vector, _ in found[1:]):
        # Parts of Docs were joined, and the token fits into more than one of the Docs. spaCy joins tensors exactly.
        found = [pair for pair in found if row is not None and np.array_equal(pair[0], row)]
    if found:
        return found[0][1]
    if field == "vectors" and row is not None:
        return row
    raise PipelineError(Errors.E304.format(index=token.i, text=token.text))


def _rows(record: Record, start: int, text: str) -> list[int]:
    """The rows of the words that share characters with a token, if the text there is that of the token."""
    end = start + len(text)
    if start < 0 or record["text"][start:end] != text:
        return []
    offsets, lengths = record["offsets"], record["lengths"]
    first = max(int(np.searchsorted(offsets, start, side="right")) - 1, 0)
    last = int(np.searchsorted(offsets, end, side="left"))
    ends = offsets + lengths
    texts = record["text"]
    return [row for row in range(first, last) if ends[row] > start and not texts[offsets[row] : ends[row]].isspace()]


def _mean(record: Record, field: str, rows: list[int]) -> np.ndarray:
    mean: np.ndarray = record[field][rows].mean(axis=0, dtype=np.float32)
    return mean


def _tensor_row(token: Token) -> np.ndarray | None:
    """The token's row of `doc.tensor`, if the tensor can be ours: `span.as_doc()` keeps it and drops the record."""
    width = _tensor_width(token.doc)
    return None if width is None else np.array(_to_numpy(token.doc.tensor[token.i]), dtype=np.float32)


def _tensor_width(doc: Doc) -> int | None:
    tensor = doc.tensor
    is_ours = tensor.ndim == 2 and tensor.shape[0] == len(doc) and tensor.shape[1] in _widths
    return int(tensor.shape[1]) if is_ours else None


def _to_numpy(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.get()


def _shape(doc: Doc, records: list[tuple[int, Record]], field: str) -> tuple[int, ...]:
    """The shape of one token's values."""
    if records and all(field in record for _, record in records):
        return cast(tuple[int, ...], records[0][1][field].shape[1:])
    if records:
        raise PipelineError(Errors.E305)
    width = _tensor_width(doc)
    if width is None:
        raise PipelineError(Errors.E303)
    if field != "vectors":
        raise PipelineError(Errors.E305)
    return (width,)


def _sum(record: Record, start: int, text: str) -> np.ndarray | None:
    """The surprisal of the words that a token is made of, NaN if it is less than one; None if the text is not there."""
    rows = _rows(record, start, text)
    if not rows:
        return None
    offsets, lengths = record["offsets"], record["lengths"]
    if offsets[rows[0]] < start or offsets[rows[-1]] + lengths[rows[-1]] > start + len(text):
        return np.full(2, np.nan, dtype=np.float32)
    total: np.ndarray = record["values"][rows].sum(axis=0, dtype=np.float32)
    return total


def _records(doc: Doc, key: tuple[Any, ...] = KEY) -> list[tuple[int, Record]]:
    """The records of a Doc, each with the character where the Doc that was annotated would begin; may be negative."""
    return [(found[2], record) for found, record in _user_data(doc).items() if _is_record(found, key)]


def _replace(user_data: dict[Any, Any], key: tuple[Any, ...], record: Record) -> None:
    for old in [old for old in user_data if _is_record(old, key)]:
        del user_data[old]
    user_data[key] = record


def _user_data(doc: Doc) -> dict[Any, Any]:
    # spaCy's type says that the keys are strings; its own are tuples.
    return cast(dict[Any, Any], doc.user_data)


def _is_record(key: object, kind: tuple[Any, ...] = KEY) -> bool:
    return isinstance(key, tuple) and len(key) == 4 and key[:2] == kind[:2]


def _positions(doc: Doc) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and lengths of the tokens, in characters."""
    if not len(doc):
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32)
    positions = doc.to_array([IDX, LENGTH]).astype(np.int32)
    return positions[:, 0].copy(), positions[:, 1].copy()
