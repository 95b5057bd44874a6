"""The ranking on rows of a batch in TransferQueue."""

import pytest
import torch
from tagged import make_meta, make_row, make_tag

from recipe.common import queue
from recipe.common.metrics import group_ledger
from recipe.common.rows import RowTag
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
    assert ranked.rewards == {"g": [0.5, 0.0, 0.25]}
    expected = [reward + penalty for reward, penalty in zip([0.5, 0.0, 0.25], penalties, strict=True)]
    rows = queue.read(batch, ["rm_scores"])
    assert [row["rm_scores"].tolist() for row in rows] == [[0.0, 0.0, 0.0, value] for value in expected]
    queue.clear("train", batch.keys)


def test_a_penalty_is_no_rescue_by_ranking_and_is_a_signal(transfer_queue):
    """One row is cut off, so that the ranking says nothing; it is longer than the others."""
    penalties = [-1.0, 0.0, 0.0]
    tags = [make_tag(False, penalty, grade=0.0, truncated=session == 0) for session, penalty in enumerate(penalties)]
    batch = make_meta({"g": tags})
    rows = [make_row(response=(1, 2, 3, 4), score=tag["score"], uid="g", entropy=FLAT) for tag in tags]
    queue.write("train", batch.keys, rows, tags)
    ledger = group_ledger(batch, rank(batch, RankingConfig()).rewards)
    assert [ledger[f"groups/{name}"] for name in ("ranked", "still_dead", "no_signal")] == [0, 1, 0]
    queue.clear("train", batch.keys)


@pytest.mark.parametrize(
    "score, grade, taken_off",
    [(-1.25, -1.0, -0.25), (0.2 + 3e-9, 0.2, 0), (0.2 - 3e-9, 0.2, 0), (0.6, 0.0, 0), (-1000.00003, -1000.0, 0)],
)
def test_what_is_taken_off_is_no_bonus_and_no_rounding(score, grade, taken_off):
    assert RowTag(score=score, grade=grade).taken_off == taken_off
