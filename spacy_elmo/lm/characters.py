"""Words as character ids: the 261-letter alphabet of ELMo, over the bytes of a word's UTF-8 form.

Ids 0–255 are byte values, the rest are marks. There is no mask id and no shift by one: what is not a word is never encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
import torch
from torch import Tensor

BEGIN_WORD_ID = 258
END_WORD_ID = 259
PADDING_ID = 260


class BoundaryWord(Enum):
    """The two words that frame a sentence. They are no text: a token spelled "<S>" is three letters and not this."""

    BEGIN = 256
    END = 257


BEGIN_SENTENCE = BoundaryWord.BEGIN
END_SENTENCE = BoundaryWord.END

Word = str | BoundaryWord


def keys_to_ids(keys: Sequence[bytes | BoundaryWord], max_characters: int) -> Tensor:
    """Character ids of words given by their keys.

    keys (Sequence): At most `max_characters - 2` bytes each, or the boundary words.
    max_characters (int): Positions of a word.
    RETURNS (Tensor): int64, (words, max_characters): begin of word, bytes, end of word, padding.
    """
    ids = np.full((len(keys), max_characters), PADDING_ID, dtype=np.int64)
    ids[:, 0] = BEGIN_WORD_ID
    for row, key in enumerate(keys):
        if isinstance(key, BoundaryWord):
            ids[row, 1] = key.value
            ids[row, 2] = END_WORD_ID
        else:
            ids[row, 1 : len(key) + 1] = np.frombuffer(key, dtype=np.uint8)
            ids[row, len(key) + 1] = END_WORD_ID
    return torch.from_numpy(ids)
