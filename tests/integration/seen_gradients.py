"""Workers that write down d loss / d output of every optimizer step: named in VERL_USE_EXTERNAL_MODULES."""

import os
from pathlib import Path

import torch

from recipe.common.queue import column
from recipe.common.trainer.finite import WatchedActorRolloutRefWorker, WatchedTrainingWorker
from recipe.rrl.rrl_trainer import RRLMixin

FOLDER = "R3_SEEN_GRADIENTS"


class Seen(WatchedTrainingWorker):
    """Each row's uid, mask and gradients (L,) by response position, and the largest one at any other position."""

    OUTPUT = "log_probs"

    def train_batch(self, data):
        loss_fn, captured = self.loss_fn, []

        def seen(model_output, data, dp_group=None):
            nested = model_output[self.OUTPUT]
            flat = nested.values()
            flat.retain_grad()
            captured.append((flat, data))
            again = torch.nested.nested_tensor_from_jagged(flat, nested.offsets())
            return loss_fn(model_output={**model_output, self.OUTPUT: again}, data=data, dp_group=dp_group)

        self.loss_fn = seen
        try:
            output = super().train_batch(data)
        finally:
            self.loss_fn = loss_fn
        folder = Path(os.environ[FOLDER])
        folder.mkdir(parents=True, exist_ok=True)
        rows = [row for flat, micro in captured for row in rows_of(flat.grad, micro)]
        torch.save(rows, folder / f"{self.OUTPUT}_{len(list(folder.iterdir()))}.pt")
        return output


def rows_of(gradients: torch.Tensor, micro) -> list[dict]:
    prompts, responses = (micro[name].offsets().diff().tolist() for name in ("prompts", "responses"))
    rows, end = [], 0
    for uid, mask, p, r in zip(column(micro["uid"]), column(micro["response_mask"]), prompts, responses, strict=True):
        # The output at a token is about the next one.
        inside = slice(end + p - 1, end + p + r - 1)
        others = torch.cat([gradients[end : inside.start], gradients[inside.stop : end + p + r]])
        own = gradients[inside].clone()
        rows.append({"uid": uid, "mask": mask.clone(), "gradients": own, "elsewhere": others.abs().max().item()})
        end += p + r
    return rows


class SeenCritic(Seen):
    OUTPUT = "values"


class SeenActorRolloutRefWorker(WatchedActorRolloutRefWorker):
    actor_worker_cls = Seen


RRLMixin.WORKER, RRLMixin.CRITIC = SeenActorRolloutRefWorker, SeenCritic
