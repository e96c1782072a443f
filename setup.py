"""How spacy-elmo is installed. Ranges are here; `requirements.txt` pins a set that is known to work."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (ROOT / "spacy_elmo" / "__init__.py").read_text("utf-8"), re.MULTILINE)

HDF5 = ["h5py>=3.8"]
PLOTS = ["matplotlib>=3.7"]
ZST = ["zstandard>=0.19"]
COMPILED = ["numba>=0.59"]

setup(
    name="spacy-elmo",
    version=VERSION[1],
    description="ELMo for spaCy: deep contextualized word representations as a pipeline component",
    long_description=(ROOT / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    author="spacy-elmo developers",
    license="MIT",
    license_files=["LICENSE"],
    keywords=["spacy", "elmo", "nlp", "language model", "word embeddings", "contextual embeddings", "lstm"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["spacy_elmo", "spacy_elmo.*"]),
    package_data={"spacy_elmo": ["py.typed", "models/**/*"]},
    zip_safe=False,
    python_requires=">=3.10",
    install_requires=[
        "spacy>=3.8.14,<3.9",
        "thinc>=8.3.12,<8.4",
        "torch>=2.6",
        "numpy>=1.26",
        "safetensors>=0.4",
        "tqdm>=4.38",
        "typer>=0.3",
        "srsly>=2.4.3",
        "wasabi>=0.9.1",
    ],
    extras_require={
        "compiled": COMPILED,
        "hdf5": HDF5,
        "plots": PLOTS,
        "zst": ZST,
        "tensorboard": ["tensorboard>=2.10"],
        "wandb": ["wandb>=0.16"],
        "dev": ["pytest>=8", "pytest-timeout>=2.3", "ruff>=0.17", "mypy>=1.15", *COMPILED, *HDF5, *PLOTS, *ZST],
    },
    entry_points={
        "spacy_factories": ["elmo = spacy_elmo.pipeline.factory:make_elmo"],
        "spacy_architectures": [
            "spacy_elmo.BiLM.v1 = spacy_elmo.layers.bilm_model:build_bilm_model",
            "spacy_elmo.BiLSTMEncoder.v1 = spacy_elmo.layers.bilstm_encoder:build_bilstm_encoder",
            "spacy_elmo.Elmo.v1 = spacy_elmo.layers.own_elmo:build_own_elmo",
            "spacy_elmo.ElmoListener.v1 = spacy_elmo.layers.listener:build_elmo_listener",
            "spacy_elmo.ElmoTok2Vec.v1 = spacy_elmo.layers.tok2vec:build_elmo_tok2vec",
            "spacy_elmo.ScalarMix.v1 = spacy_elmo.layers.scalar_mix:build_scalar_mix",
            "spacy_elmo.StaticVectors.v1 = spacy_elmo.layers.tok2vec:build_static_vectors",
        ],
        "spacy_callbacks": ["spacy_elmo.unfreeze_at.v1 = spacy_elmo.pipeline.unfreezing:unfreeze_at"],
        "spacy_misc": [
            "spacy_elmo.sentence_spans.v1 = spacy_elmo.pipeline.sentences:sentence_spans",
            "spacy_elmo.punctuation_spans.v1 = spacy_elmo.pipeline.sentences:punctuation_spans",
            "spacy_elmo.doc_spans.v1 = spacy_elmo.pipeline.sentences:doc_spans",
            "spacy_elmo.strided_spans.v1 = spacy_elmo.pipeline.sentences:strided_spans",
        ],
        "thinc_schedules": ["spacy_elmo.slanted_triangular.v1 = spacy_elmo.layers.schedules:slanted_triangular"],
        "spacy_cli": ["elmo = spacy_elmo.cli:elmo_cli"],
    },
)
