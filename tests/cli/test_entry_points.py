"""What an installed spacy-elmo tells spaCy of itself."""

from __future__ import annotations

from importlib import metadata

import pytest
from spacy.util import registry

import spacy_elmo


@pytest.fixture(scope="module")
def entry_points() -> metadata.EntryPoints:
    try:
        return metadata.distribution("spacy-elmo").entry_points
    except metadata.PackageNotFoundError:
        pytest.skip("spacy-elmo is not installed: pip install -e .")


def test_all_lead_somewhere(entry_points: metadata.EntryPoints) -> None:
    groups = {entry_point.group for entry_point in entry_points if entry_point.load()}
    of_spacy = {"spacy_factories", "spacy_architectures", "spacy_callbacks", "spacy_misc", "spacy_cli"}
    assert groups == {*of_spacy, "thinc_schedules"}


@pytest.mark.parametrize("group", ["architectures", "callbacks", "misc"])
def test_names_are_those_of_the_registry(entry_points: metadata.EntryPoints, group: str) -> None:
    named = {entry_point.name: entry_point.load() for entry_point in entry_points.select(group=f"spacy_{group}")}
    registered = {name: value for name, value in getattr(registry, group).get_all().items() if "spacy_elmo." in name}
    assert named == registered


def test_version_is_that_of_the_package(entry_points: metadata.EntryPoints) -> None:
    assert metadata.version("spacy-elmo") == spacy_elmo.__version__
