"""Tags and batches for tests, without TransferQueue."""

import torch

from recipe.common.queue import KVBatchMeta
from recipe.common.rows import PLAIN


def make_tag(correct: bool, score: float | None = None, variant: str = PLAIN, **changes) -> dict:
    score = float(correct) if score is None else score
    tag = {"group": "q", "variant": variant, "correct": correct, "truncated": False, "score": score}
    origin = "replayed" if "replay_age" in changes else "fresh"
    return {**tag, "origin": origin, "prompt_len": 20, "response_len": 10, **changes}


def make_meta(groups: dict[str, list[dict]]) -> KVBatchMeta:
    """A batch of groups uid -> tags."""
    keys = [f"{uid}_{session}_0" for uid, tags in groups.items() for session in range(len(tags))]
    return KVBatchMeta(keys=keys, tags=[tag for tags in groups.values() for tag in tags], partition_id="train")


WRONG, RIGHT = make_tag(False), make_tag(True)
FAILED = make_tag(False, grade=0.0, reward_error=True)
REPLAYED_WRONG, REPLAYED_RIGHT = make_tag(False, replay_age=2), make_tag(True, replay_age=4)
PADDING = {"is_padding": True}


def make_row(prompt=(7, 8, 9), response=(1, 2), score: float = 0.0, **changes) -> dict:
    """The fields of a finished trajectory."""
    prompts, responses = torch.tensor(prompt), torch.tensor(response)
    rm_scores = torch.zeros(len(responses))
    rm_scores[-1] = score
    return {
        "uid": "u",
        "session_id": 0,
        "query_id": "q",
        "raw_prompt": [{"role": "user", "content": "1+1?"}],
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses]),
        "position_ids": torch.arange(len(prompts) + len(responses)),
        "response_mask": torch.ones_like(responses),
        "loss_mask": torch.ones_like(responses),
        "rm_scores": rm_scores,
        "rollout_log_probs": -torch.ones(len(responses)),
        "extra_fields": {"reward_extra_info": {"acc": score > 0, "truncated": False}},
        "multi_modal_inputs": {},
        **changes,
    }
