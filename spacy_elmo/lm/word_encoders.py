"""Token encoders with a table of words: the table alone, as bilm-tf can be trained, or beside characters, as in
ELMoForManyLangs (Che et al. 2018, "Towards better UD parsing").

Unlike one over bytes, they look words up in vocabularies. What a vocabulary does not hold is unknown; so is text that spells
one of its marks, such as "<S>": it is no boundary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ConfigError, Errors
from .char_encoder import CharacterEncoder, CharacterFeatures, Linear
from .characters import BEGIN_SENTENCE, BoundaryWord, Word
from .config import BiLMConfig, TokenEncoder
from .devices import indices

# Words encoded at the same time beside characters: bounds the memory, whatever their number.
_WORDS_PER_RUN = 4096


class Lexicon:
    """The entries of a table and their rows.

    name (str): What it is called in `vocabularies` and in messages.
    entries (Sequence[str]): One for each row.
    n_rows (int): Rows of the table.
    marks (Sequence[str]): Entries that no text spells, such as that of the begin of a sentence.
    optional (Sequence[str]): Marks that may be missing.

    RAISES (ConfigError): E007 if there are not as many entries as rows, E008 for an entry that is no string or there
        twice, E009 if a mark is missing.
    """

    def __init__(
        self, name: str, entries: Sequence[str], n_rows: int, marks: Sequence[str], optional: Sequence[str] = ()
    ) -> None:
        self.entries = tuple(entries)
        self._marks = frozenset((*marks, *optional))
        if len(self.entries) != n_rows:
            raise ConfigError(Errors.E007.format(name=name, found=len(self.entries), expected=n_rows))
        for entry in self.entries:
            if not isinstance(entry, str):
                raise ConfigError(Errors.E008.format(name=name, entry=f"an entry of type {type(entry).__name__}"))
        self._rows = {entry: row for row, entry in enumerate(self.entries)}
        if len(self._rows) != n_rows:
            twice = Counter(self.entries).most_common(1)[0][0]
            raise ConfigError(Errors.E008.format(name=name, entry=f"{twice[:40]!r} more than once"))
        missing = [mark for mark in marks if mark not in self._rows]
        if missing:
            raise ConfigError(Errors.E009.format(name=name, missing=missing))

    def __deepcopy__(self, memo: dict[int, Any]) -> Lexicon:
        return self  # it never changes

    def __contains__(self, entry: str) -> bool:
        return entry in self._rows

    def row_of(self, mark: str) -> int:
        """RETURNS (int): The row of a mark, which must be there."""
        return self._rows[mark]

    def find(self, text: str, unknown: int) -> int:
        """RETURNS (int): The row of a word or character of text, `unknown` if there is none."""
        return unknown if text in self._marks else self._rows.get(text, unknown)


class WordEncoder(nn.Module):
    """A table of word vectors. It sees whole words, by the row of the table.

    Unknown words have the vector of `<UNK>` where the vocabulary has that entry, and zeros where it does not.

    config (BiLMConfig): Shape.
    words (Sequence[str]): The word of each row; `<S>` and `</S>`, the boundaries of a sentence, must be there.

    RAISES (ConfigError): E007–E009 as Lexicon does.
    """

    BEGIN, END, UNKNOWN = "<S>", "</S>", "<UNK>"

    def __init__(self, config: BiLMConfig, words: Sequence[str]) -> None:
        super().__init__()
        self.lexicon = Lexicon("words", words, config.n_words, (self.BEGIN, self.END), (self.UNKNOWN,))
        self.unknown_row = self.lexicon.row_of(self.UNKNOWN) if self.UNKNOWN in self.lexicon else -1
        self.words = nn.Parameter(torch.empty(config.n_words, config.projection).uniform_(-1, 1))

    @property
    def vocabularies(self) -> Mapping[str, Sequence[str]]:
        """The words of the rows."""
        return {"words": self.lexicon.entries}

    def key(self, word: Word) -> int:
        """RETURNS (int): The row of a word; −1 if it is unknown and there is no `<UNK>`."""
        if isinstance(word, BoundaryWord):
            return self.lexicon.row_of(self.BEGIN if word is BEGIN_SENTENCE else self.END)
        return self.lexicon.find(word, self.unknown_row)

    def encode(self, keys: Sequence[Any]) -> Tensor:
        """Look words up.

        keys (Sequence[int]): From `key`.
        RETURNS (Tensor): (words, projection).
        """
        rows = indices(keys, self.words.device)
        vectors = self.words.index_select(0, rows.clamp(min=0))
        return vectors if self.unknown_row >= 0 else vectors.masked_fill((rows < 0).unsqueeze(1), 0)


class WordAndCharacterEncoder(CharacterFeatures):
    """The token layer of ELMoForManyLangs: a row of a table of words beside the filters over the word's characters (code
    points, not bytes), projected together.

    It sees the first `max_characters - 2` characters, and the table of words sees no more than that. Unknown words and
    characters have the vectors of `<oov>`. Where a word begins stands the row `<eow>`, and where it ends `<bow>`: so the
    published models were trained.

    config (BiLMConfig): Shape and numerics.
    words (Sequence[str]): The word of each row, with the marks `<bos>`, `<eos>`, `<oov>`.
    characters (Sequence[str]): The character of each row, with the same marks and `<bow>`, `<eow>`, `<pad>`.

    RAISES (ConfigError): E007–E009 as Lexicon does.
    """

    BEGIN, END, UNKNOWN, PADDING = "<bos>", "<eos>", "<oov>", "<pad>"
    BEGIN_WORD, END_WORD = "<eow>", "<bow>"

    def __init__(self, config: BiLMConfig, words: Sequence[str], characters: Sequence[str]) -> None:
        marks = (self.BEGIN, self.END, self.UNKNOWN)
        letter_marks = (*marks, self.BEGIN_WORD, self.END_WORD, self.PADDING)
        letters = Lexicon("characters", characters, config.n_characters, letter_marks)
        super().__init__(config, config.n_characters, letters.row_of(self.PADDING))
        self.character_lexicon = letters
        self.word_lexicon = Lexicon("words", words, config.n_words, marks, (self.PADDING,))
        self.max_characters = config.max_characters
        self.words = nn.Parameter(torch.empty(config.n_words, config.word_dim).uniform_(-1, 1))
        self.projection = Linear(config.word_dim + config.n_filters, config.projection)

    @property
    def vocabularies(self) -> Mapping[str, Sequence[str]]:
        """The words and the characters of the rows."""
        return {"words": self.word_lexicon.entries, "characters": self.character_lexicon.entries}

    def key(self, word: Word) -> str | BoundaryWord:
        """RETURNS (str | BoundaryWord): What the encoder sees of a word: words with one key have one vector."""
        return word if isinstance(word, BoundaryWord) else word[: self.max_characters - 2]

    def encode(self, keys: Sequence[Any]) -> Tensor:
        """Encode words.

        keys (Sequence[str | BoundaryWord]): From `key`.
        RETURNS (Tensor): (words, projection).
        """
        starts = range(0, max(1, len(keys)), _WORDS_PER_RUN)
        return torch.cat([self._encode_words(keys[start : start + _WORDS_PER_RUN]) for start in starts])

    def _encode_words(self, keys: Sequence[str | BoundaryWord]) -> Tensor:
        rows = indices([self._word_row(key) for key in keys], self.words.device)
        features = self(torch.from_numpy(self._character_ids(keys)))
        encoded: Tensor = self.projection(torch.cat([self.words.index_select(0, rows), features], 1))
        return encoded.to(self.words.dtype)

    def _word_row(self, key: str | BoundaryWord) -> int:
        lexicon = self.word_lexicon
        if isinstance(key, BoundaryWord):
            return lexicon.row_of(self._mark_of(key))
        return lexicon.find(key, lexicon.row_of(self.UNKNOWN))

    def _character_ids(self, keys: Sequence[str | BoundaryWord]) -> np.ndarray:
        lexicon = self.character_lexicon
        unknown, end = lexicon.row_of(self.UNKNOWN), lexicon.row_of(self.END_WORD)
        ids = np.full((len(keys), self.max_characters), self.padding_id, dtype=np.int64)
        ids[:, 0] = lexicon.row_of(self.BEGIN_WORD)
        for row, key in enumerate(keys):
            if isinstance(key, BoundaryWord):
                letters = [lexicon.row_of(self._mark_of(key))]
            else:
                letters = [lexicon.find(letter, unknown) for letter in key]
            ids[row, 1 : len(letters) + 2] = [*letters, end]
        return ids

    def _mark_of(self, boundary: BoundaryWord) -> str:
        return self.BEGIN if boundary is BEGIN_SENTENCE else self.END


AnyEncoder = CharacterEncoder | WordEncoder | WordAndCharacterEncoder

# The vocabularies that each encoder looks up.
_VOCABULARIES: dict[TokenEncoder, list[str]] = {
    "characters": [],
    "words": ["words"],
    "words_and_characters": ["words", "characters"],
}


def build_encoder(config: BiLMConfig, vocabularies: Mapping[str, Sequence[str]]) -> AnyEncoder:
    """The token encoder of a biLM, with new weights.

    config (BiLMConfig): Shape and numerics.
    vocabularies (Mapping): The entries of each table that it looks up, in the order of the rows.
    RETURNS (CharacterEncoder | WordEncoder | WordAndCharacterEncoder): The encoder.
    RAISES (ConfigError): E006 for other vocabularies than the encoder looks up, E007–E009 if one does not fit.
    """
    expected = _VOCABULARIES[config.token_encoder]
    if set(vocabularies) != set(expected):
        encoder, given = config.token_encoder, sorted(vocabularies)
        raise ConfigError(Errors.E006.format(encoder=encoder, expected=expected, given=given))
    if config.token_encoder == "characters":
        return CharacterEncoder(config)
    if config.token_encoder == "words":
        return WordEncoder(config, vocabularies["words"])
    return WordAndCharacterEncoder(config, vocabularies["words"], vocabularies["characters"])
