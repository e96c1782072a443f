"""Thinc layers: what a spaCy config can name."""
