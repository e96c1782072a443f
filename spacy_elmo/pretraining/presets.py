"""Recipes by name: a biLM, and how to train it."""

from __future__ import annotations

from typing import Any, Literal

PresetName = Literal["elmo-2018", "base", "small"]

_OFFICIAL_FILTERS = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]

PRESETS: dict[PresetName, dict[str, dict[str, Any]]] = {
    # Peters et al. 2018, as bilm-tf trains it on three GPUs; its vocabulary of the 1B words has 793,471 entries. Weights are
    # drawn as there by every biLM. What differs: both directions of a step read the same text.
    "elmo-2018": {
        "bilm": {
            "filters": _OFFICIAL_FILTERS,
            "n_highway": 2,
            "projection": 512,
            "cells": 4096,
            "cell_clip": 3.0,
            "projection_clip": 3.0,
            "initial_state": "canonical",
        },
        "training": {
            "epochs": 10,
            "objective": "streams",
            "unroll": 20,
            "max_words": 10_000,
            "batch_words": 2560,
            "parts": 3,
            "optimizer": "adagrad",
            "schedule": "constant",
            "peak_rate": 0.2,
            "warmup_steps": 0,
            "weight_decay": 0.0,
            "dropout": 0.1,
            "loss_scale": 20.0,
            "max_gradient_norm": 10.0,
            "vocabulary_size": 793_471,
            "min_count": 3,
            "softmax": {"kind": "sampled", "n_samples": 8192, "distribution": "log-uniform"},
        },
    },
    # The same size by a modern recipe: nothing clipped, so that the recurrence may be fused.
    "base": {
        "bilm": {
            "filters": _OFFICIAL_FILTERS,
            "n_highway": 1,
            "projection": 512,
            "cells": 4096,
            "cell_clip": None,
            "projection_clip": None,
        },
        "training": {
            "epochs": 10,
            "batch_words": 16_384,
            "peak_rate": 1e-3,
            "warmup_steps": 2000,
            "vocabulary_size": 200_000,
            "min_count": 3,
            "softmax": {"kind": "adaptive", "cutoffs": [4000, 20_000, 80_000], "shrink": 2.0},
            "precision": "fastest",
            "recurrence": "fastest",
        },
    },
    # As the model that comes with spacy-elmo: about an hour for ten million words on one core.
    "small": {
        "bilm": {
            "filters": [[1, 32], [2, 64], [3, 128], [4, 160]],
            "n_highway": 1,
            "projection": 128,
            "cells": 512,
        },
        "training": {"peak_rate": 3e-3, "dropout": 0.0, "precision": "fastest", "recurrence": "fastest"},
    },
}
