"""Machines without a GPU: verl's platform, vLLM's worker, the tiny model, quick starts."""
