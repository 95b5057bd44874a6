"""The ranking on rows of a batch in TransferQueue."""

import pytest
import torch
from tagged import make_meta, make_row, make_tag

from recipe.common import queue
from recipe.r3.config.r3_config import RankingConfig
from recipe.r3.ranking import rank

SPREAD, FLAT = torch.tensor([0.0, 2.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 1.0, 1.0])


def group(level: float, penalties: list[float]):
    """All wrong: two cut off, of which the first has the higher peak and the lower mean, and a finished one."""
    tags = [
        make_tag(False, level + penalty, grade=level, truncated=session < 2)
        for session, penalty in enumerate(penalties)
    ]
    batch = make_meta({"g": tags})
    rows = [
        make_row(response=(1, 2, 3, 4), score=tag["score"], uid="g", entropy=entropy)
        for tag, entropy in zip(tags, (SPREAD, FLAT, FLAT), strict=True)
    ]
    queue.write("train", batch.keys, rows, tags)
    return batch


@pytest.mark.parametrize("level", [0.0, -1.0])
@pytest.mark.parametrize("penalties", [[0.0, 0.0, 0.0], [-1.0, -1.0, -0.25]])
def test_a_penalty_beside_the_score_is_kept_under_the_ranking(transfer_queue, level, penalties):
    batch = group(level, penalties)
    ranked = rank(batch, RankingConfig(max_reward=0.5))
    expected = [reward + penalty for reward, penalty in zip([0.5, 0.0, 0.25], penalties, strict=True)]
    assert ranked.rewards == {"g": expected}
    rows = queue.read(batch, ["rm_scores"])
    assert [row["rm_scores"].tolist() for row in rows] == [[0.0, 0.0, 0.0, value] for value in expected]
    queue.clear("train", batch.keys)
