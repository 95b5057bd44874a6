"""The three sentences that a report opens with."""

import json
import re
from pathlib import Path

import pytest

from r3_ext.doctor.settings import check_values
from r3_ext.report.opening import opening
from r3_ext.report.runs import Arm, load_run
from r3_ext.settings.compose import compose_config
from tests.ext.opened import FOLDER, R3, end, rows_of, run_of, said, start

GRPO = R3 | {"trainer.v1.trainer_mode": "baseline"}


# The three sentences of one run


def test_a_finished_run_is_told_with_its_numbers():
    happened, did, try_next = said(run_of(rows_of([0.25, 0.5])))
    assert happened == (
        "Run r3_embedded/one (r3) finished after 4 steps (64 problems over 2 epochs, repeats counted), and its "
        "validation accuracy went from 25 % to 50 % between step 0 and step 1."
    )
    assert did == (
        "40 of 64 groups of answers to one problem were dead, that is all right or all wrong: R^3 rescued 24 of them "
        "(20 by replay of past answers, 4 by ranking alone), and 8 of 12 reflection prompts were solved."
    )
    assert try_next.startswith("Train GRPO beside it before you trust the gain: `r3 study --arms grpo r3` gives")


def test_answers_without_a_score_are_told_of_training_and_validation():
    rows = rows_of([0.0, 0.0])
    rows[0]["val/reward_errors"], rows[1]["reward/errors"] = 8, 1
    happened, *_ = said(run_of(rows))
    told = "; there is no score for 1 answer of training and 8 answers of validation, which count as wrong: the grader "
    assert happened.endswith(f"{told}was late, or the reward function failed.")


def test_a_single_step_with_a_single_dead_group_is_told_in_the_singular():
    rows = rows_of([0.25], steps=1, dead=1, left=0)
    rows[1] |= {"groups/total": 1, "groups/mixed": 0, "groups/rescued_by_replay": 1}
    rows[1] |= {"reflection/prompts": 1, "reflection/solved": 1}
    happened, did, try_next = said(run_of(rows))
    assert happened == (
        "Run r3_embedded/one (r3) finished after 1 step (1 problem), and its only validation, in step 0, found an "
        "accuracy of 25 %."
    )
    assert did == (
        "1 of 1 group of answers to one problem was dead, that is all right or all wrong: R^3 rescued it (1 by replay "
        "of past answers, 0 by ranking alone), and 1 of 1 reflection prompt was solved."
    )
    assert "`trainer.val_before_train=True trainer.test_freq=1`" in try_next


def test_prompts_are_not_called_reflection_prompts_where_some_groups_were_asked_plainly():
    rows = rows_of([0.25, 0.5])
    rows[1]["reflection/by_plain/asked"] = 2
    _, did, _ = said(run_of(rows))
    assert did.endswith("and 8 of 12 further prompts were solved.")


def test_all_groups_dead_and_none_rescued():
    rows = rows_of([0.0, 0.0], dead=16, left=16, wrong=16, **{"reflection/prompts": 0, "reflection/solved": 0})
    happened, did, try_next = said(run_of(rows))
    assert "went from 0 % to 0 %" in happened
    assert did == (
        "64 of 64 groups of answers to one problem were dead, that is all right or all wrong: R^3 rescued none of "
        "them, and no problem was asked again with a reflection prompt."
    )
    assert "`actor_rollout_ref.rollout.n=8`: 100 % of the groups stayed all wrong" in try_next
    rows = rows_of([0.9, 0.9], dead=16, left=16, wrong=4)
    assert said(run_of(rows))[2] == "Train on harder problems: 75 % of the groups were all right."


def test_no_dead_group_leaves_nothing_to_rescue():
    _, did, try_next = said(run_of(rows_of([0.2, 0.6], dead=0, left=0)))
    assert did.startswith(
        "None of 64 groups of answers to one problem was dead, that is all right or all wrong: R^3 had nothing to"
    )
    assert try_next.startswith("Compare with `--method grpo`, which costs less: with 0 % of the groups dead")


def test_a_baseline_says_what_was_lost():
    _, did, try_next = said(run_of(rows_of([0.25, 0.5], left=10), GRPO))
    assert did == (
        "R^3 was not at work, and 40 of 64 groups of answers to one problem were dead, that is all right or all wrong, "
        "and taught nothing about what is right."
    )
    assert try_next == (
        "Train the same with `--method r3`, which gives the 62.5 % of the groups that were dead here something to "
        "teach."
    )
    _, _, try_next = said(run_of(rows_of([0.25, 0.5], dead=1, left=1), GRPO))
    assert try_next.startswith("Stay with this method on these problems: 6.25 % of the groups were dead")


def test_restarts_are_what_a_method_did():
    restarted = {"restart/compared": 8.0, "restart/success": 0.5, "restart/fresh_success": 0.25}
    rows = [row | restarted for row in rows_of([0.25, 0.5], left=10)]
    _, did, _ = said(run_of(rows, {"trainer.v1.trainer_mode": "rrl"}))
    groups = "40 of 64 groups of answers to one problem were dead"
    found = f"{8 * len(rows)} restarts succeeded in 50 %, fresh attempts at the same problems in 25 %"
    assert did.startswith(f"{found}; {groups}")


def test_a_run_is_called_by_its_method_and_the_control_of_r3_is_not_counted_as_r3():
    for method, trainer in (("ppo", "rrl"), ("gigpo", "hgpo"), ("r3_paper", "r3")):
        started = [start(options={"profile": "embedded", "method": method}), end()]
        happened, *_ = said(run_of(rows_of([0.25]), {"trainer.v1.trainer_mode": trainer}, started))
        assert happened.startswith(f"Run r3_embedded/one ({method}) finished")
    started = [start(options={"profile": "embedded", "method": "grpo_extra"}), end()]
    plain = {"algorithm.r3.reflection.ask": "plain", "algorithm.r3.replay.enable": False}
    control = run_of(rows_of([0.25, 0.5]), R3 | plain | {"algorithm.r3.ranking.enable": False}, started)
    _, did, _ = said(run_of(rows_of([0.25, 0.5]), R3 | plain, started))
    assert did.startswith("40 of 64 groups"), "what is on decides, not the name"
    _, did, try_next = said(control)
    assert did.startswith("R^3 was not at work, and 40 of 64 groups of answers to one problem were dead")
    assert "`--method r3`" in try_next
    _, did, _ = said(run_of(rows_of([0.25, 0.5])), control)
    assert did.startswith("With R^3, 40 of 64 groups") and "; without it, 40 of 64 groups were dead." in did


def test_a_method_that_trains_groups_without_contrast_is_not_said_to_learn_nothing_from_them():
    for method, title in (("ngrpo", "NGRPO"), ("rl_zvp", "RL-ZVP"), ("gae", "PPO")):
        _, did, _ = said(run_of(rows_of([0.25, 0.5], left=10), GRPO | {"algorithm.adv_estimator": method}))
        assert did.endswith(f"all right or all wrong, and {title} trained them by their outcome.")


def test_what_dynamic_sampling_threw_away_was_dead():
    rows = rows_of([0.25, 0.5], dead=0, left=0, **{"training/filter_groups/evicted_samples": 4.0})
    _, did, try_next = said(run_of(rows, GRPO | {"algorithm.filter_groups.enable": True}))
    assert "16 of 80 groups" in did and "the 20 % of the groups" in try_next


def test_with_all_mechanisms_off_it_is_no_run_of_r3():
    off = {key: False for key in R3 if key.endswith(".enable")}
    assert said(run_of(rows_of([0.2, 0.4], left=10), R3 | off))[1].startswith("R^3 was not at work")


def test_a_baseline_of_verls_own_has_no_ledger():
    rows = [{"step": number, "training/global_step": number} for number in (1, 2)]
    happened, did, _ = said(run_of(rows, GRPO))
    assert happened == "Run r3_embedded/one (grpo) finished after 2 steps (32 problems), and nothing was validated."
    assert did == "R^3 was not at work, and what became of the groups of answers was not logged."


def test_a_run_before_its_first_step():
    happened, did, try_next = said(run_of([{"step": 0}], starts=[start()], is_training=True))
    assert happened == "Run r3_embedded/one (r3) is still running without a training step, and nothing was validated."
    assert did.startswith("What became of the groups of answers was not logged, and no problem was asked again")
    assert try_next == (
        "Let run r3_embedded/one go on, and should it break off, `r3 resume /out/r3_embedded/one` goes on from its "
        "last checkpoint."
    )


@pytest.mark.parametrize(
    ("starts", "summary", "state", "advice"),
    [
        ([start(), end()], {}, "finished", "Train GRPO"),
        ([start(), end(75)], {}, "was stopped by SIGTERM", "`r3 resume /out/r3_embedded/one` goes on from the last"),
        ([start(), end(130)], {}, "was interrupted", "`r3 resume /out/r3_embedded/one` goes on from the last"),
        ([start()], {}, "was killed", "`r3 resume /out/r3_embedded/one` goes on from the last"),
        ([start(), end(None), start(), end()], {}, "finished", "Train GRPO"),
        (
            [start(), end(1)],
            {},
            "failed with exit code 1",
            "Find the cause at the end of `/out/r3_embedded/one/run.log`",
        ),
        ([start(), end([{}])], {}, "failed with exit code [{}]", "Find the cause"),
        ([], {"exit_code": 1}, "failed with exit code 1", "Find the cause"),
        ([], {}, "was trained", "Train GRPO"),
    ],
)
def test_how_a_run_ended_and_what_to_do_about_it(starts, summary, state, advice):
    happened, _, try_next = said(run_of(rows_of([0.25, 0.5]), starts=starts, summary=summary))
    assert happened.startswith(f"Run r3_embedded/one (r3) {state} after 4 steps") and try_next.startswith(advice)


def test_a_resumed_run_says_how_often_it_was_started():
    starts = [start(), end(75), start(), end()]
    assert "(64 problems over 2 epochs, repeats counted; 2 starts)" in said(run_of(rows_of([0.2]), starts=starts))[0]


def test_a_folder_with_blanks_is_quoted_for_the_shell():
    run = run_of(rows_of([0.2]), starts=[start()], folder=Path("/out dir/r3/one"))
    assert "`r3 resume '/out dir/r3/one'`" in said(run)[2]


# What to try next


@pytest.mark.parametrize(
    ("accuracies", "of_step", "config", "advice"),
    [
        ((0.5, 0.505), {"left": 8, "wrong": 8}, {}, "actor_rollout_ref.rollout.n=8"),
        (
            (0.5, 0.505),
            {"left": 4},
            {},
            "`r3 resume /out/r3_embedded/one trainer.total_epochs=10`: accuracy has neither",
        ),
        ((0.5, 0.4), {"left": 8}, {}, "actor_rollout_ref.actor.optim.lr=0.0001"),
        ((0.5, 0.4), {"left": 8, "fresh/truncated/mean": 0.4}, {}, "data.max_response_length=128`: 40 % of them"),
        (
            (0.5, 0.5),
            {"training/epoch": 0},
            {},
            "past the first epoch, `r3 resume /out/r3_embedded/one trainer.total_ep",
        ),
        ((0.5, 0.5), {}, {"trainer.total_training_steps": 4}, "trainer.total_training_steps=8`: accuracy has"),
        ((0.5, 0.5), {"training/epoch": 4}, {"trainer.total_training_steps": 4}, "steps=8 trainer.total_epochs=10`"),
        ((0.5, 0.5), {}, {"trainer.total_epochs": float("nan")}, "trainer.total_epochs=4`"),
        ((0.5, 0.9), {"left": 8}, {}, "`r3 study --arms grpo r3`"),
    ],
)
def test_the_advice_follows_from_the_figures(accuracies, of_step, config, advice):
    assert advice in said(run_of(rows_of(accuracies, **of_step), R3 | config))[2]


def test_asking_again_that_finds_hardly_anything_for_its_tokens_is_told_with_what_it_cost():
    """4 steps of 16 groups, 8 mixed, 3,000 tokens; 12 groups a step asked again, 1,000 tokens."""
    asked = {"groups/mixed": 8, "fresh/tokens": 3000, "reflection/prompts": 12, "reflection/tokens": 1000}
    rows = rows_of([0.5, 0.5], left=8, **asked, **{"reflection/solved": 0})
    rows[1]["reflection/solved"] = 2
    assert said(run_of(rows))[2] == (
        "Ask no group again, `algorithm.r3.reflection.enable=False`: it took 25 % of the generated tokens and found a "
        "right answer for 4.17 % of the groups, where 50 % of all groups were mixed."
    )
    cut = {"fresh/rows": 64, "fresh/truncated/mean": 0.25, "reflection/rows": 48, "reflection/truncated/mean": 0.75}
    text = said(run_of([row | cut for row in rows[:3]] + [row | {"fresh/truncated/mean": 1.0} for row in rows[3:]]))[2]
    assert all(part in text for part in ("length=128`, or ask no group again, `", "75 % of its answers were cut off"))
    assert said(run_of([row | cut | {"fresh/truncated/mean": 0.5} for row in rows]))[2].startswith("Ask no group again")
    rows[2]["reflection/solved"] = 1
    assert "Ask no group" not in said(run_of(rows))[2], "3 for 4,000 tokens are more than a quarter of 32 for 12,000"
    few = [row | {"reflection/prompts": 3, "reflection/solved": 0} if row["step"] else row for row in rows]
    assert "Ask no group" not in said(run_of(few))[2], "of 12 groups asked nothing can be said"


def test_one_epoch_is_too_short_only_where_groups_wait_for_the_next():
    rows = rows_of([0.5, 0.5], **{"training/epoch": 0})
    sooner = {"algorithm.r3.reflection.when": "at_once"}
    assert "past the first epoch" not in said(run_of(rows, R3 | sooner))[2]
    assert "past the first epoch" in said(run_of(rows))[2]


def test_a_run_of_a_budget_is_lengthened_by_its_budget():
    started = start(options={"profile": "embedded", "until_tokens": 5000})
    text = said(run_of(rows_of([0.5, 0.5]), starts=[started, end()]))[2]
    assert "`r3 resume /out/r3_embedded/one --until-tokens 10000`" in text


def test_values_that_are_not_finite_ask_for_a_lower_learning_rate(tmp_path):
    (tmp_path / "config.yaml").write_text("actor_rollout_ref: {actor: {optim: {lr: 2.0e-4}}}\n")
    rows = [json.dumps(row | {"actor/grad_norm": float("nan")}) for row in rows_of([float("nan"), 0.5])]
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows))
    happened, _, try_next = said(load_run(tmp_path))
    assert "its only validation, in step 1, found an accuracy of 50 %" in happened
    assert try_next == (
        "Train anew with a lower learning rate, `actor_rollout_ref.actor.optim.lr=0.0001`, as 5 values of "
        "actor/grad_norm were not finite."
    )


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["embedded", "gpu_8x80gb"])
def test_every_override_that_is_advised_can_be_set(profile):
    base = [f"+profile={profile}", "+method=r3"]
    config = compose_config(base)
    keys = ("actor_rollout_ref.actor.optim.lr", "actor_rollout_ref.rollout.n", "data.max_response_length")
    values = {"trainer.v1.trainer_mode": "r3"}
    for key in (*keys, "trainer.total_epochs"):
        node = config
        for part in key.split("."):
            node = node[part]
        values[key] = node
    cases = [
        ([0.5], {}, {}),
        ([0.5, 0.5], {"left": 8, "wrong": 8}, {}),
        ([0.5, 0.4], {}, {}),
        ([0.5, 0.5], {"fresh/truncated/mean": 0.5}, {}),
        ([0.5, 0.5], {}, {}),
        ([0.5, 0.5], {"training/epoch": 9}, {"trainer.total_training_steps": 4}),
    ]
    advised = {}
    for accuracies, of_step, extra in cases:
        text = said(run_of(rows_of(accuracies, **of_step), values | extra))[2]
        found = re.findall(r"([\w.]+)=([\w.-]+)", text)
        assert found
        advised |= dict(found)
    lengths = {f"trainer.{name}" for name in ("total_epochs", "total_training_steps", "test_freq", "val_before_train")}
    assert advised.keys() == {*keys} | lengths
    assert not check_values(compose_config(base + [f"{key}={value}" for key, value in advised.items()]))


# Several runs


def test_seeds_are_told_together():
    runs = [run_of(rows_of([0.2, last]), folder=FOLDER.with_name(name)) for name, last in (("a", 0.4), ("b", 0.6))]
    happened, did, _ = opening([Arm("r3", runs)])
    assert happened.replace("\xa0", " ") == (
        "2 runs that differ in the seed took 4 steps each, and validation accuracy went from 20 % to 50 %."
    )
    assert did.startswith("80 of 128 groups")


def three_seeds(label, config, last, **of_step):
    folders = (Path("/out") / label / str(seed) for seed in range(3))
    return Arm(label, [run_of(rows_of([0.2, last], **of_step), config, folder=folder) for folder in folders])


def test_arms_are_compared():
    happened, did, try_next = opening([three_seeds("r3", R3, 0.6), three_seeds("grpo", GRPO, 0.5, left=10)])
    assert happened.replace("\xa0", " ") == (
        "6 runs in 2 arms took 4 steps each, and validation accuracy went from 20 % to 60 % (r3) and from 20 % to 50 % "
        "(grpo)."
    )
    assert did == (
        "With R^3, 120 of 192 groups of answers to one problem were dead, that is all right or all wrong: R^3 rescued "
        "72 of them (60 by replay of past answers, 12 by ranking alone), and 24 of 36 reflection prompts were solved; "
        "without it, 120 of 192 groups were dead."
    )
    assert "the lead of r3 over grpo, 10.0 points of accuracy, holds at equal generated tokens" in try_next
    worse = opening([three_seeds("r3", R3, 0.5), three_seeds("grpo", GRPO, 0.5, left=10)])[2]
    assert worse.endswith("`r3 study --arms grpo ccr isr serr`: r3 did not end above grpo.")
    assert "`--method grpo`" in opening([three_seeds("r3", R3, 0.5), three_seeds("off", R3, 0.4)])[2]


def test_of_many_arms_the_best_and_the_worst_are_told_and_unfinished_runs_named():
    arms = [three_seeds(f"arm{number}", R3, 0.1 * number) for number in range(2, 7)]
    for arm in arms[:2]:
        for run in arm.runs:
            run.starts = [start(), end(1)]
    happened, _, try_next = opening(arms)
    assert happened.replace("\xa0", " ") == (
        "15 runs in 5 arms took 4 steps each (arm2/0 failed with exit code 1, arm2/1 failed with exit code 1, arm2/2 "
        "failed with exit code 1, and 3 more did not finish), and validation accuracy went at best from 20 % to 60 % "
        "(arm6) and at worst from 20 % to 20 % (arm2)."
    )
    assert "`/out/arm2/0/run.log`" in try_next


def test_too_few_seeds_are_no_comparison():
    text = said(run_of(rows_of([0.2, 0.4])), run_of(rows_of([0.2, 0.3]), GRPO))[2]
    assert text.endswith("with 1 run in an arm a difference cannot be told from chance.")
