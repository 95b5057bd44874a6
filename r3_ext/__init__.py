"""What surrounds the recipes: the CPU platform, the run launcher, doctor and tools. Recipes never import it."""

import os

if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    # vLLM's worker process imports r3_ext.cpu.vllm_worker before verl. The platform must be registered while verl is
    # being imported, ahead of the modules in VERL_USE_EXTERNAL_MODULES, so verl has to go first everywhere.
    import verl  # noqa: F401
