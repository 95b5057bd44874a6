"""Tools for methods on sessions alone."""
