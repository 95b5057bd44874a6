"""The Hugging Face hub: asked only where a local file is not enough, and never waited for when it is out of reach."""

import os
from functools import lru_cache

TIMEOUT_S = 10
"""Its clients try each request six times, for over 20 s when the hub is out of reach, and there are many requests."""
OUT_OF_REACH = "not in the local cache, and the Hugging Face hub cannot be reached"


@lru_cache(maxsize=1)
def go_offline_if_unreachable() -> bool:
    """Ask the hub once whether it is there; if not, this process and its children take what is in the local cache.

    Returns whether the hub can be used.
    """
    import httpx
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT_S)
    except httpx.HTTPError:
        constants.HF_HUB_OFFLINE = True
        os.environ["HF_HUB_OFFLINE"] = "1"
        return False
    return True


def why_not(error: Exception) -> str:
    """What to tell people of a failed download."""
    if not go_offline_if_unreachable():
        return OUT_OF_REACH
    return f"the Hugging Face hub gave {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
