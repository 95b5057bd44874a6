"""A reward function of the user's own in a real run: the example of reasoning-gym, from its own rows to the report.

The settings are those of the full run in test_run.py. As there, nothing is said of ranking: of the few groups that are
all wrong replay rescues most, and whether the answers of another can be ordered depends on their entropies alone.
"""

import json
import sqlite3
import subprocess
import sys

import pytest

from .conftest import ROOT
from .test_run import EAGER

pytestmark = pytest.mark.integration

FOLDER = ROOT / "examples" / "custom_reward"
TASKS = ["gcd", "letter_counting:max_words=8", "spell_backward:max_word_len=6"]
"""Short ones. Many wrong spellings have letters in their places, which earns a part of the mark."""


@pytest.fixture(scope="module")
def graded(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reasoning_gym")
    prepare = [sys.executable, FOLDER / "prepare_data.py", "--output-dir", folder, "--train-rows", "200"]
    subprocess.run([*prepare, "--tasks", *TASKS], check=True)
    return train(
        *("r3", "graded", *EAGER),
        f"reward.custom_reward_function.path={FOLDER / 'reasoning_gym_reward.py'}",
        "reward.custom_reward_function.name=compute_score",
        sources={"DATA": str(folder / "train.parquet")},
    )


def test_every_mechanism_fires_with_the_function(graded):
    rows, summary = graded.rows, graded.summary
    assert len(rows) == summary["steps"] == 5 and all(row["fresh/rows"] == 64 for row in rows)
    assert "reward/errors" not in {key for row in rows for key in row}
    groups = summary["groups"]
    assert groups["total"] == 5 * 16 == groups["mixed"] + groups["all_correct"] + groups["all_wrong"]
    assert groups["rescued_by_replay"] > 0 and summary["replayed_rows"] >= groups["rescued_by_replay"]
    assert summary["reflection"]["prompts"] > 0
    assert 0 < rows[0]["fresh/acc/mean"] < 1 and all(row["groups/split"] == 0 for row in rows)


def test_marks_between_wrong_and_right_reach_the_trainer(graded):
    """The score in the history is the sum of rm_scores, which verl computes the advantages from."""
    with sqlite3.connect(graded.folder / "history.sqlite") as db:
        scores = {correct: set() for correct in (0, 1)}
        for correct, score in db.execute("SELECT correct, score FROM samples"):
            scores[correct].add(score)
    assert any(0 < score < 1 for score in scores[0]) and max(scores[0]) < 1
    # The full mark of 1, and the length bonus on top of it.
    assert 1 < min(scores[1]) and max(scores[1]) < 2
    assert all(0 <= row["critic/score/min"] and row["critic/score/max"] < 2 for row in graded.rows)


def test_validation_is_told_by_task(graded):
    logged = [json.loads(line) for line in (graded.folder / "metrics.jsonl").read_text().splitlines()]
    validations = [row for row in logged if any(key.startswith("val-core/") for key in row)]
    assert [row["step"] for row in validations] == [0, 5]
    for row in validations:
        sources = {key.removeprefix("val/").removesuffix("/pass@1") for key in row if key.endswith("/pass@1")}
        assert sources and sources <= {f"reasoning_gym/{task.partition(':')[0]}" for task in TASKS}
        assert sum(row[f"val/{source}/problems"] for source in sources) == 8
        for source in sources:
            assert row[f"val/{source}/pass@1"] == pytest.approx(row[f"val-core/{source}/acc/mean@1"])
    assert graded.summary["val"]["first"] is not None
