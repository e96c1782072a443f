"""Random weights in the official shape and at the scale of trained ones, as options.json and weights.hdf5.

All contestants load the same two files. The values know no language, but the layers have the size that a trained model's have
(0.3, 0.6 and 1.0 in the mean) and 1 in 10,000 outputs meets the clip, so that a comparison of vectors means something.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np

OFFICIAL_FILTERS = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]
CHARACTER_DIM = 16
N_CHARACTERS = 261
N_LAYERS = 2
# cells, projection, highways
SIZES = {"full": (4096, 512, 2), "small": (1024, 128, 1)}
DEFAULT_CACHE = Path(tempfile.gettempdir()) / "spacy-elmo-benchmarks"


def random_weights(size: str, cache: Path) -> tuple[Path, Path]:
    """Write the weights of a size once; later calls find them.

    size (str): "full" (4096 cells, 512 projection, 2 highways, 374 MB) or "small" (1024, 128, 1, 54 MB).
    cache (Path): Directory for the files.
    RETURNS (tuple[Path, Path]): options.json and weights.hdf5.
    """
    directory = cache / size
    options_path, weights_path = directory / "options.json", directory / "weights.hdf5"
    if not (options_path.exists() and weights_path.exists()):
        directory.mkdir(parents=True, exist_ok=True)
        cells, projection, n_highway = SIZES[size]
        options_path.write_text(json.dumps(_options(cells, projection, n_highway), indent=2), encoding="utf8")
        unfinished = weights_path.with_suffix(".unfinished")
        with h5py.File(unfinished, "w") as file:
            _write_encoder(file, projection, n_highway)
            _write_lstms(file, cells, projection)
        os.replace(unfinished, weights_path)
    return options_path, weights_path


def _options(cells: int, projection: int, n_highway: int) -> dict[str, Any]:
    return {
        "lstm": {
            "use_skip_connections": True,
            "projection_dim": projection,
            "cell_clip": 3,
            "proj_clip": 3,
            "dim": cells,
            "n_layers": N_LAYERS,
        },
        "char_cnn": {
            "activation": "relu",
            "filters": OFFICIAL_FILTERS,
            "n_highway": n_highway,
            "embedding": {"dim": CHARACTER_DIM},
            "n_characters": N_CHARACTERS + 1,
            "max_characters_per_token": 50,
        },
    }


def _write_encoder(file: h5py.File, projection: int, n_highway: int) -> None:
    draw = _Draw(seed=0)
    n_filters = sum(number for _, number in OFFICIAL_FILTERS)
    file["char_embed"] = draw.normal((N_CHARACTERS, CHARACTER_DIM), 1.0)
    for index, (width, number) in enumerate(OFFICIAL_FILTERS):
        shape = (1, width, CHARACTER_DIM, number)
        file[f"CNN/W_cnn_{index}"] = draw.normal(shape, 0.4 / np.sqrt(width * CHARACTER_DIM))
        file[f"CNN/b_cnn_{index}"] = draw.normal((number,), 0.1)
    for index in range(n_highway):
        for part, bias in (("carry", -1.0), ("transform", 0.0)):
            file[f"CNN_high_{index}/W_{part}"] = draw.normal((n_filters, n_filters), 1 / np.sqrt(n_filters))
            file[f"CNN_high_{index}/b_{part}"] = draw.normal((n_filters,), 0.1) + np.float32(bias)
    file["CNN_proj/W_proj"] = draw.normal((n_filters, projection), 1 / np.sqrt(n_filters))
    file["CNN_proj/b_proj"] = draw.normal((projection,), 0.1)


def _write_lstms(file: h5py.File, cells: int, projection: int) -> None:
    draw = _Draw(seed=1)
    for direction in range(2):
        for layer in range(N_LAYERS):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            # Weaker on the state than on the input: a recurrence that amplifies would amplify rounding, too.
            kernel = [draw.normal((projection, 4 * cells), scale / np.sqrt(projection)) for scale in (1.0, 0.3)]
            file[f"{cell}/W_0"] = np.concatenate(kernel)
            file[f"{cell}/B"] = draw.normal((4 * cells,), 0.1)
            file[f"{cell}/W_P_0"] = draw.normal((cells, projection), 3.0 / np.sqrt(cells))


class _Draw:
    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def normal(self, shape: tuple[int, ...], scale: float) -> np.ndarray:
        return self._generator.standard_normal(shape, dtype=np.float32) * np.float32(scale)
