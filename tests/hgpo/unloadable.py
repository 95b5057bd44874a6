"""A world whose module does not load."""

raise RuntimeError("no such display")
