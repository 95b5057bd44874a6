"""Tools for R^3 alone: history, probe, rehearsal."""
