"""The real command end to end: every mechanism in the ledger, the run folder, validation, two ranks."""

import json
import math
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from r3_ext.run.finish import report_line
from recipe.common.rows import TrainedUid

from .conftest import ROOT, check_contrast, received_rows, rescued_groups, rows_override

pytestmark = pytest.mark.integration

# Easy triggers, so that a handful of steps of a barely trained model shows every mechanism.
EAGER = [
    "trainer.total_training_steps=5",
    "trainer.test_freq=5",
    "trainer.val_before_train=True",
    "trainer.save_freq=5",
    "algorithm.r3.reflection.threshold=1.0",
    "algorithm.r3.reflection.min_attempts=1",
    "algorithm.r3.replay.outcome=both",
]


GYM = ROOT / "examples" / "custom_reward"
TASKS = ["gcd", "letter_counting:max_words=8", "spell_backward:max_word_len=6"]
"""Short ones. Many wrong spellings have letters in their places, which earns a part of the mark."""


@pytest.fixture(scope="module")
def rows_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module")
def full(train, tmp_path_factory, rows_folder):
    """The example with a reward function of its own, on rows of its own."""
    folder = tmp_path_factory.mktemp("reasoning_gym")
    prepare = [sys.executable, GYM / "prepare_data.py", "--output-dir", folder, "--train-rows", "200"]
    subprocess.run([*prepare, "--tasks", *TASKS], check=True)
    return train(
        *("r3", "full", *EAGER),
        f"reward.custom_reward_function.path={GYM / 'reasoning_gym_reward.py'}",
        "reward.custom_reward_function.name=compute_score",
        rows_override(rows_folder),
        sources={"DATA": str(folder / "train.parquet")},
    )


def test_every_mechanism_fires_and_the_series_stay_apart(full):
    """Nothing is said of ranking: of the few groups that are all wrong replay rescues most, and whether the answers of
    another can be ordered depends on their entropies alone."""
    rows, summary = full.rows, full.summary
    assert len(rows) == summary["steps"] == 5 and summary["epochs"] >= 2
    groups = summary["groups"]
    assert groups["total"] == 5 * 16 == groups["mixed"] + groups["all_correct"] + groups["all_wrong"]
    assert groups["rescued_by_replay"] > 0 and summary["replayed_rows"] >= groups["rescued_by_replay"]
    assert summary["reflection"]["prompts"] > 0
    assert all(row["fresh/rows"] == 64 for row in rows), "replayed and reflection rows leaked into fresh/"
    total = sum(row["fresh/rows"] + row["replay/rows"] + row["reflection/rows"] for row in rows)
    assert summary["trained_rows"] == total
    for name in ("tokens", "prompt_tokens"):
        assert all(row[f"generated/{name}"] == row[f"fresh/{name}"] + row[f"reflection/{name}"] > 0 for row in rows)
    assert summary["generated_tokens"] == sum(row["generated/tokens"] for row in rows)
    assert {"first", "last"} <= set(summary["reward"]) and summary["seconds"]["per_step_median"] > 0
    assert 0 < rows[0]["fresh/acc/mean"] < 1 and all(row["groups/split"] == 0 for row in rows)
    assert "reward/errors" not in {key for row in rows for key in row}


def test_marks_between_wrong_and_right_reach_the_trainer(full):
    """The score in the history is the sum of rm_scores, which verl computes the advantages from."""
    with sqlite3.connect(full.folder / "history.sqlite") as db:
        scores = {correct: set() for correct in (0, 1)}
        for correct, score in db.execute("SELECT correct, score FROM samples"):
            scores[correct].add(score)
    # At most 1: the letters' sixths of a right word with a tail add up to 0.9999999999999999, which is 1 as a float32.
    assert any(0 < score < 1 for score in scores[0]) and max(scores[0]) <= 1
    # The full mark of 1, and the length bonus on top of it.
    assert 1 < min(scores[1]) and max(scores[1]) < 2
    assert all(0 <= row["critic/score/min"] and row["critic/score/max"] < 2 for row in full.rows)


def test_every_process_of_a_run_is_a_fork(full):
    log = (full.folder / "run.log").read_text()
    assert "Started a local Ray instance" in log and "a new interpreter instead of a fork" not in log


def test_validation_sees_neither_replay_nor_reflection(full):
    logged = [json.loads(line) for line in (full.folder / "metrics.jsonl").read_text().splitlines()]
    validations = [row for row in logged if any(key.startswith("val-core/") for key in row)]
    assert [row["step"] for row in validations] == [0, 5]
    assert full.summary["val"]["first"] is not None
    for row in validations:
        sources = {key.removeprefix("val/").removesuffix("/pass@1") for key in row if key.endswith("/pass@1")}
        assert sources and sources <= {f"reasoning_gym/{task.partition(':')[0]}" for task in TASKS}
        assert sum(row[f"val/{source}/problems"] for source in sources) == 8
        for name in (f"val/{source}" for source in sources):
            assert row[f"{name}/pass@1"] == pytest.approx(row[f"{name.replace('val/', 'val-core/', 1)}/acc/mean@1"])
            assert row[f"{name}/pass@1/low"] <= row[f"{name}/pass@1"] <= row[f"{name}/pass@1/high"]
            assert row[f"{name}/tokens/all"] > 0
    with sqlite3.connect(full.folder / "history.sqlite") as db:
        [(attempts,)] = db.execute("SELECT sum(attempts) FROM statistics")
    trained = sum(row["fresh/rows"] + row["reflection/rows"] for row in full.rows)
    assert attempts == trained, "validation answers must not enter the history"


def test_replayed_rows_train_beside_what_grpo_gives_the_fresh_ones(full, rows_folder):
    """Rewards of right answers differ by their lengths, others by the marks that they earn."""
    replayed = 0
    for row in full.rows:
        for groups in rescued_groups(received_rows(rows_folder, row["step"])):
            for rows in groups.values():
                fresh = [one["advantage"] for one in rows if "#replay" not in one["uid"]]
                assert sum(fresh) == pytest.approx(0, abs=1e-4)
                deviations = [advantage**2 for advantage in fresh]
                assert sum(deviations) in (0, pytest.approx(len(fresh) - 1, rel=1e-2)) or "#rank" in rows[0]["uid"]
                others = [one["advantage"] for one in rows if "#replay" in one["uid"]]
                assert all(others)
                replayed += len(others)
    assert replayed


def test_the_run_folder_holds_what_the_readme_promises(full):
    names = {path.name for path in full.folder.iterdir()}
    assert {"config.yaml", "environment.json", "metrics.jsonl", "summary.json", "history.sqlite", "run.log"} <= names
    assert list((full.folder / "tensorboard").iterdir()) and (full.folder / "checkpoints" / "global_step_5").is_dir()
    assert json.loads((full.folder / "environment.json").read_text())["versions"]["verl"] == "0.9.1"
    log = (full.folder / "run.log").read_text(errors="replace")
    assert re.search(r"INFO:.*R\^3: ", log), "what is on is told among verl's own lines"
    # A path is printed in one piece, however long it is, so that it can be copied.
    lines = [line for line in full.output.splitlines() if full.folder.parents[2].name not in line]
    assert max(map(len, lines)) <= 120 and any(line.startswith("step    5") for line in lines)


def test_a_run_ends_with_three_sentences_on_its_numbers(full):
    summary, printed = full.summary, " ".join(full.output.replace("\xa0", " ").split())
    first, last = (f"{100 * summary['val'][end]:.3g} %" for end in ("first", "last"))
    groups = summary["groups"]
    dead = groups["all_correct"] + groups["all_wrong"]
    happened = (
        rf"Run \S+ \(r3\) finished after 5 steps \(80 problems.*accuracy went from {first} to {last} between step 0"
    )
    assert re.search(happened, printed), printed[-3000:]
    assert f"{dead} of 80 groups of answers to one problem were dead" in printed
    rescued = dead - groups["still_dead"] if groups["still_dead"] else "all"
    assert f"rescued {rescued} of them ({groups['rescued_by_replay']} by replay" in printed
    assert "says nothing about a real model" in printed, "it was built to recall the answers of these problems"


def test_a_report_is_drawn_from_a_real_run(full):
    assert report_line(full.folder).startswith("report: ")
    page = (full.folder / "report.html").read_text()
    assert page.count("<svg") > 5
    assert not re.findall(r"https?://(?!www\.w3\.org)", page), "it must open without network"
    assert list((full.folder / "figures").glob("*.png"))


def test_two_ranks_train_every_rescued_group_whole(train, tmp_path):
    """Two FSDP ranks, two rollout replicas and two optimizer steps; what the workers received decides. With a reward
    function that fails in all ways."""
    folder = tmp_path / "rows"
    run = train(
        *("r3", "two_ranks", "trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2"),
        *("algorithm.r3.replay.outcome=both", "algorithm.r3.replay.trains=all"),
        *("algorithm.r3.reflection.threshold=1.0", "algorithm.r3.reflection.min_attempts=1"),
        # About the mean length, so that answers are cut off, and ranked.
        *("data.max_response_length=48", rows_override(folder)),
        f"reward.custom_reward_function.path={Path(__file__).with_name('misbehaving_reward.py')}",
        "reward.reward_kwargs.grader_timeout_s=1",
    )
    assert 0 < sum(row.get("reward/errors", 0) for row in run.rows) == run.summary["reward_errors"]
    log = (run.folder / "run.log").read_text()
    assert "the reward function " in log and "Traceback" not in log
    assert all(math.isfinite(row["critic/score/max"]) and row["critic/score/max"] <= 2 for row in run.rows)
    assert len(run.rows) == 3 and all(row["fresh/rows"] == 64 for row in run.rows)
    assert all(row["training/rollout_actor_probs_pearson_corr"] > 0.99 for row in run.rows)
    assert [row["groups/split"] for row in run.rows] == [0, 0, 0]
    marks = Counter()
    for row in run.rows:
        ranks = received_rows(folder, row["step"])
        assert len(ranks) == 2 and [len(steps) for steps in ranks] == [2, 2]
        sizes = {len(rows) for steps in ranks for rows in steps}
        assert len(sizes) == 1, "every rank trains as many rows in every optimizer step"
        trained = [one for steps in ranks for rows in steps for one in rows if one["tokens"]]
        trained_keys = {(TrainedUid.parse(one["uid"]).group, one["session"]) for one in trained}
        padding = sum(one["uid"].startswith("pad") for one in trained)
        assert len(trained) == len(trained_keys)
        assert len(trained) - padding == sum(row[f"{kind}/rows"] for kind in ("fresh", "replay", "reflection"))
        marks.update(one["uid"].partition("#")[2] for one in trained)
        for number, groups in enumerate(rescued_groups(ranks)):
            for uid, rows in groups.items():
                fresh = sum("#replay" not in one["uid"] for one in rows)
                # Four more where the group was asked again plainly: they join it.
                assert fresh in (4, 8), f"optimizer step {number} of step {row['step']} got {fresh} fresh rows of {uid}"
                check_contrast(rows)
    assert marks["replay"] and marks["ranked"] and sum(row["reflection/rows"] for row in run.rows)
