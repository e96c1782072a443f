"""The configs of this project: of each component one with ELMo and one with spaCy's default features.

python scripts/make_configs.py configs
"""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

from spacy import util
from thinc.api import Config

from spacy_elmo.cli.init_config import init_config

COMPONENTS = ("ner", "tagger")


def elmo_config(component: str, **settings: Any) -> Config:
    """RETURNS (Config): A pipeline of an elmo pipe and one component. For the settings see `init_config`."""
    return init_config("en", [component], **settings)


def baseline_config(component: str, **settings: Any) -> Config:
    """RETURNS (Config): The same pipeline without ELMo: the same embeddings, the same encoder, the same training."""
    config = deepcopy(elmo_config(component, **settings))
    config["nlp"]["pipeline"].remove("elmo")
    del config["components"]["elmo"]
    model = config["components"][component]["model"]
    parts = {name: model["tok2vec"][name] for name in ("embed", "encode")}
    model["tok2vec"] = {"@architectures": "spacy.Tok2Vec.v2", **parts}
    filled = util.load_model_from_config(Config(config), auto_fill=True).config
    return Config(filled, section_order=util.CONFIG_SECTION_ORDER)


def write_configs(directory: Path) -> None:
    """Write the configs of all components."""
    directory.mkdir(parents=True, exist_ok=True)
    for component in COMPONENTS:
        elmo_config(component).to_disk(directory / f"{component}.cfg")
        baseline_config(component).to_disk(directory / f"{component}_baseline.cfg")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write_configs(Path(sys.argv[1]))
