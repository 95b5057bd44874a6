"""Which of verl's methods a class of a recipe extends."""

import inspect

PUBLIC = {"__init__", "run_single"}
"""Constructors, and the one method of verl's abstract reward manager."""


def extended(cls: type) -> set[str]:
    """Names of verl's methods that classes of this repository define again for `cls`."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith("recipe.")]
    theirs = [base for base in cls.__mro__ if base.__module__.startswith("verl.")]
    names = {name for base in ours for name, value in vars(base).items() if inspect.isfunction(value)}
    return {name for name in names if any(name in vars(base) for base in theirs)} - PUBLIC
