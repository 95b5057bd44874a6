"""Tools for R^3 alone: history, probe, and what is rehearsed of it."""
