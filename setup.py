"""For tools that look for this file; everything that it would say stands in pyproject.toml."""

from setuptools import setup

setup()
