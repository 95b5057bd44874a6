"""The mechanisms fire in the real path: planted dead groups give stock GRPO no gradient at all, and R^3 one."""

import shutil
from collections import Counter

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack

from recipe.common.queue import rows_of

from .conftest import STEPS, check_contrast, received_rows, rescued_groups, rows_override, skip_overrides

pytestmark = pytest.mark.integration


def plant(recording, folder):
    """A copy of the recording in which every group is dead and a query's outcome changes from step to step.

    Outcomes cycle through all correct (score 1), all wrong with every other answer truncated (0) and all truncated
    (0). Scores within a group are equal, so that GRPO sees no signal.
    """
    shutil.copytree(recording, folder)
    for file in folder.rglob("tq_batch.pt"):
        payload = torch.load(file, weights_only=False)
        data, step = payload["tensordict"], payload["global_steps"]
        rows = rows_of(data.select("query_id", "extra_fields", "rm_scores"))
        queries = sorted({str(row["query_id"]) for row in rows})
        extras, scores, seen = [], [], Counter()
        for row in rows:
            extra, query, old = row["extra_fields"], str(row["query_id"]), row["rm_scores"]
            outcome = (queries.index(query) + step) % 3
            seen[query] += 1
            truncated = outcome == 2 or (outcome == 1 and seen[query] % 2 == 0)
            extra["reward_extra_info"].update(acc=float(outcome == 0), truncated=float(truncated))
            score = torch.zeros_like(old)
            score[-1] = float(outcome == 0)
            scores.append(score)
            extras.append(extra)
        data["extra_fields"] = NonTensorStack.from_list([NonTensorData(extra) for extra in extras])
        data["rm_scores"] = torch.nested.as_nested_tensor(scores, layout=torch.jagged)
        torch.save(payload, file)
    return folder


@pytest.fixture(scope="module")
def planted(recording, tmp_path_factory):
    return plant(recording, tmp_path_factory.mktemp("planted") / "rollouts")


@pytest.fixture(scope="module")
def rows_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module")
def r3(train, planted, rows_folder):
    return train(
        *("r3", "planted_r3", "algorithm.r3.reflection.enable=False", f"trainer.save_freq={STEPS}"),
        rows_override(rows_folder),
        *("algorithm.r3.replay.outcome=both", "algorithm.r3.replay.trains=all"),
        # The peak as the largest entropy: of eleven groups of real answers, with short ones among them, some hold two
        # of which one dominates the other, whatever this machine's warm start led to.
        "algorithm.r3.ranking.top_ratio=0.01",
        *skip_overrides(planted),
    )


def test_dead_groups_train_under_r3_and_not_under_grpo(train, planted, r3):
    grpo = train("grpo", "planted_grpo", *skip_overrides(planted))

    assert [row["actor/grad_norm"] for row in grpo.rows] == [0.0] * STEPS
    assert [row["groups/still_dead"] for row in grpo.rows] == [16] * STEPS
    first, second = r3.rows[0], r3.rows[1]
    for row in (first, second):
        assert row["groups/mixed"] == 0 and row["groups/total"] == 16
        assert row["actor/grad_norm"] > 0
    # Step 1 has no history yet: only the ranking of truncated groups can rescue.
    assert first["groups/ranked"] > 0 and first["replay/rows"] == 0
    # Ranking rewards are centred, not divided by their std, which would spread any of them over more than 1.7.
    assert 0 < first["critic/advantages/max"] - first["critic/advantages/min"] <= 0.5
    # In step 2 all-correct groups were truncated before, and all-wrong groups correct: both directions of replay.
    assert second["groups/rescued_by_replay"] >= second["groups/all_correct"] > 0
    assert second["groups/still_dead"] < second["groups/total"] / 2
    assert r3.summary["groups"]["rescued_by_replay"] > 0


def test_no_optimizer_step_pushes_a_rescued_group_without_its_contrast(r3, rows_folder):
    """Where replayed rows were the last of the batch, the first optimizer step saw none of them."""
    with_replay = []
    for row in r3.rows:
        for number, groups in enumerate(rescued_groups(received_rows(rows_folder, row["step"]))):
            for uid, rows in groups.items():
                advantages = [one["advantage"] for one in rows]
                check_contrast(rows)
                if any("#replay" in one["uid"] for one in rows):
                    assert min(advantages) < 0 < max(advantages)
                    with_replay.append(number)
        assert row["groups/split"] == 0
    assert set(with_replay) == {0, 1}


def test_a_replayed_failure_trains_with_what_the_taper_left_of_its_advantage(r3, rows_folder):
    """In an all-right group the fresh rows have what the failure would have without the taper, with the other sign."""
    tapered = 0
    for row in r3.rows:
        steps = rescued_groups(received_rows(rows_folder, row["step"]))
        tokens, left = 0, 0.0
        for rows in (rows for groups in steps for rows in groups.values()):
            replayed = [one for one in rows if "#replay" in one["uid"]]
            whole = -sum(one["advantage"] for one in rows if one not in replayed)
            if replayed and whole < 0:
                (failure,) = replayed
                tokens += failure["tokens"]
                left += failure["tokens"] * failure["advantage"] / whole
        assert bool(tokens) == ("replay/taper/mean" in row)
        if tokens:
            assert left / tokens == pytest.approx(row["replay/taper/mean"], rel=1e-3)
            tapered += left / tokens < 1
    assert tapered


def test_optimizer_steps_do_not_depend_on_appended_rows(r3):
    """verl's own padding would turn one row over a full batch into a third optimizer step."""
    assert sum(row["replay/rows"] for row in r3.rows) > 0
    [file] = (r3.folder / "checkpoints" / f"global_step_{STEPS}" / "actor").glob("optim_world_size_1_rank_0.pt")
    state = torch.load(file, weights_only=False)["state"]
    taken = {int(value["step"]) for value in state.values()}
    assert taken == {STEPS * 2}, "16 prompts a step in mini-batches of 8 are two optimizer steps"
