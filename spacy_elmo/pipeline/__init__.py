"""The spaCy component and what it writes to a Doc."""
