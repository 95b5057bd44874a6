"""What is told of restarts is what the record of their study gives."""

import numpy as np

from r3_ext.settings.compose import ROOT
from r3_ext.study import record
from r3_ext.study.text import mean_and_interval
from tests.benchmarks.restarts import (
    CRITIC,
    GROUPS,
    NAME,
    RECORD,
    RESTARTED,
    arm_rows,
    other_rows,
    paid,
    right,
    share,
    success,
    success_rows,
)
from tests.benchmarks.rivals import steps_of, verdict_row, verdicts_of

PAGE = (RECORD / "README.md").read_text()
TEXT = " ".join(PAGE.split())
RESULTS_PAGE = " ".join((ROOT / "docs" / "results.md").read_text().split())


def test_every_cell_of_the_plan_is_there_and_of_one_commit():
    ledger = record.read_ledger(RECORD)
    planned = {f"{one.folder}/{arm}": set(one.seeds) for one in (CRITIC, GROUPS) for arm in one.arms}
    assert {arm: set(of) for arm, of in ledger.items()} == planned and sum(map(len, planned.values())) == 64
    [commit] = {cell[record.COMMIT] for of in ledger.values() for cell in of.values()}
    assert f"All 64 cells were trained at commit `{commit[:7]}`" in TEXT


def test_the_page_has_every_verdict_and_what_hangs_on_single_worlds():
    verdicts = verdicts_of(NAME)
    assert len(verdicts) == 6
    assert all(found["worlds"] == found["planned"] in (8, 12) for found in verdicts.values())
    assert [key for key, found in verdicts.items() if verdict_row(found) not in PAGE] == []


def test_what_arms_reached_cost_and_restarted_is_told_as_the_record_has_it():
    assert [row for row in (*arm_rows(), *other_rows(), *success_rows()) if row not in PAGE] == []


def test_what_the_plan_calls_acting_is_told_as_the_ledger_has_it():
    ledger = record.read_ledger(RECORD)
    of = [share("restart_rows", "trained_rows", ledger[f"critic/{arm}"], CRITIC.seeds) for arm in CRITIC.arms[1:]]
    rows = np.mean([cell["restart_rows"] for cell in ledger["groups/restart"].values()])
    assert min(of) >= 0.15 and rows >= 16
    assert "{:.2f}, {:.2f} and {:.2f} of the rows".format(*of) in TEXT and f"{rows:.1f} rows a cell" in TEXT


def test_where_restarts_did_better_than_fresh_attempts_is_told_by_world():
    worlds = {row["seed"] for row in steps_of(NAME)}
    better = {
        arm: sum(own > fresh for w in worlds for _, _, own, fresh in [success(arm, world=w)]) for arm in RESTARTED
    }
    assert better == {"rrl_random": 1, "rrl": 0, "rrl_right": 7} and len(worlds) == 8
    assert "in seven of eight worlds for `rrl_random`, in all for `rrl`" in TEXT
    assert "**Restarts from parts of right answers were right more often**, in seven of eight worlds" in TEXT


def test_how_often_restarts_are_right_is_told_as_the_ledger_has_it():
    ledger = record.read_ledger(RECORD)
    by_chance, by_critic, of_right = (right(ledger[f"critic/{arm}"].values()) for arm in RESTARTED)
    assert f"Of all restarts in twelve worlds it is {by_critic:.3f} and {by_chance:.3f}" in TEXT
    assert f"and in {of_right:.2f} of all restarts" in TEXT
    critic, chance = ledger["critic/rrl"], ledger["critic/rrl_random"]
    less = [
        share("restart_right", "restart_rows", critic, [world])
        - share("restart_right", "restart_rows", chance, [world])
        for world in CRITIC.seeds
    ]
    assert f"the difference is {mean_and_interval(less).replace(' (', ' in the mean world (')}" in TEXT


def test_what_is_told_of_r3_beside_ppo_follows_from_the_record():
    ledger = record.read_ledger(RECORD)
    read = [
        np.mean([share("prompt_tokens", "generated_tokens", ledger[arm], GROUPS.seeds) for arm in arms])
        for arms in (("groups/r3", "groups/restart"), ("critic/ppo",))
    ]
    assert "R^3 also reads {:.2f} prompt tokens for each generated one, PPO {:.2f}".format(*read) in TEXT
    for text in (TEXT, RESULTS_PAGE):
        assert f"not shown to be above PPO: it is {mean_and_interval(paid())}" in text
    assert f"(p = {6 * verdicts_of(NAME)['r3_over_ppo']['p']:.2f})" in TEXT


def test_readme_and_docs_tell_verdicts_and_restarts_as_the_record_has_them():
    verdicts = verdicts_of(NAME)
    rows = [
        f"| {of['worlds']} | {of['estimate']:+.3f} | {of['low']:+.3f} to {of['high']:+.3f} | {of['verdict']}"
        for of in verdicts.values()
    ]
    assert [row for row in rows if row not in RESULTS_PAGE] == []
    recipe = " ".join((ROOT / "recipe" / "rrl" / "README.md").read_text().split())
    (_, _, own, fresh), (_, _, right_own, right_fresh) = success(*CRITIC.arms[1:3]), success(*CRITIC.arms[3:])
    assert f"{own:.2f} against {fresh:.2f}, and {right_own:.2f} against {right_fresh:.2f}" in RESULTS_PAGE
    assert f"the same problems ({own:.2f} against {fresh:.2f}, in eight of these worlds)" in recipe
    assert f"answers more often ({right_own:.2f} against {right_fresh:.2f})" in recipe
    ledger = record.read_ledger(RECORD)
    failed = right([*ledger["critic/rrl"].values(), *ledger["critic/rrl_random"].values()])
    of_right = right(ledger["critic/rrl_right"].values())
    assert f"{failed:.2f} were right, and {of_right:.2f} of those from parts of right answers" in RESULTS_PAGE
    over, right_over = verdicts["rrl_over_ppo"], verdicts["right_over_ppo"]
    ends, right_ends = (f"{of['low']:+.3f} to {of['high']:+.3f}" for of in (over, right_over))
    above = f"it is {over['estimate']:.3f} of Pass@1 above on average over 60,000 tokens"
    assert f"{above} (95 % interval, not corrected, {ends})" in recipe
    assert f"and {right_over['estimate']:.3f} with states of right answers ({right_ends})" in recipe
