"""Machines without a GPU: verl's platform, vLLM's worker, quick starts."""
