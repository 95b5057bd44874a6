"""The tools of RRL-style replay alone."""
