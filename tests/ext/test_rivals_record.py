"""What is told of R^3 and its rivals, in worlds of facts and of sorting, is what the records give."""

import csv

import numpy as np
import pytest
from scipy import stats

from r3_ext.settings.compose import ROOT
from r3_ext.study.outcome import accuracy_at
from r3_ext.study.text import mean_and_interval
from tests.benchmarks.rivals import (
    FACTS,
    FAMILIES,
    RESULTS,
    RIVALS,
    RUNS,
    SORTING,
    Cells,
    arm_rows,
    asked_again,
    asked_rows,
    both_rows,
    gradient_rows,
    paid_rows,
    rescue_rows,
    step_rows,
    steps_of,
    twice_rows,
    verdict_row,
    verdicts_of,
)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_page_has_every_verdict_and_what_hangs_on_single_worlds(name):
    text, verdicts = (RESULTS / name / "README.md").read_text(), verdicts_of(name)
    assert len(verdicts) == {FACTS: 10, SORTING: 5}[name]
    assert all(found["worlds"] == found["planned"] == 20 for found in verdicts.values())
    assert [key for key, found in verdicts.items() if verdict_row(found) not in text] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_what_prompts_cost_arms_and_two_runs_of_one_method_are_told_as_the_record_has_them(name):
    text, cells = (RESULTS / name / "README.md").read_text(), Cells(name)
    assert len(cells.worlds) == 20
    rows = [*paid_rows(cells), *arm_rows(cells), *twice_rows(cells)]
    assert [row for row in rows if row not in text] == []


def test_the_sentences_on_facts_follow_from_its_record():
    text, cells = " ".join((RESULTS / FACTS / "README.md").read_text().split()), Cells(FACTS)
    mean = {method: cells.mean(method, cells.budget) for method in ("R^3", *RIVALS)}
    ours, base = mean["R^3"], mean["GRPO"]
    lost = [(base - mean[rival]).mean() / (ours - mean[rival]).mean() for rival in ("dapo", "rl_zvp", "grpo_extra")]
    assert "that is {:.0f}, {:.0f} and {:.0f} % of R^3's lead".format(*(100 * share for share in lost)) in text
    read = {method: cells.read(method).mean() for method in RUNS}
    assert "reads {R^3:.2f} prompt tokens for each generated one, GRPO {GRPO:.2f}".format(**read) in text
    end = cells.mean("GRPO", 30000, accuracy_at)
    gains = [mean_and_interval(cells.mean("R^3", tokens, accuracy_at) - end) for tokens in (30000, 26000)]
    assert "R^3 is {} to GRPO, and {} with R^3 at 26,000".format(*gains) in text
    gained = dict(zip(cells.worlds, ours - base, strict=True))
    first = np.mean([gained[w] for w in range(401, 406)]), np.mean([gained[w] for w in range(406, 421)])
    assert "R^3 less GRPO is {:+.3f} in the first five worlds and {:+.3f} in the others".format(*first) in text
    assert f"Without world 414 R^3 is {np.mean([gained[w] for w in cells.worlds if w != 414]):.3f} above GRPO" in text
    deviations = sorted(np.std(ours - mean[rival], ddof=1) for rival in RIVALS)
    assert "deviations of {:.3f} to {:.3f} over the worlds".format(deviations[0], deviations[-1]) in text
    p = [stats.ttest_1samp(cells.paid(rival), 0).pvalue for rival in RIVALS]
    assert min(p) * len(p) > 0.05, "none of the right column is shown"


def test_the_sentences_on_sorting_follow_from_its_record():
    text, cells = " ".join((RESULTS / SORTING / "README.md").read_text().split()), Cells(SORTING)
    mean = {method: cells.mean(method, cells.budget) for method in ("R^3", *cells.rivals)}
    others = [mean_and_interval(mean[rival] - mean["GRPO"]) for rival in ("dapo", "rl_zvp", "grpo_extra")]
    assert "DAPO less GRPO is {}, RL-ZVP {}, further answers {}.".format(*others) in text
    read = {method: cells.read(method).mean() for method in RUNS}
    assert "reads {R^3:.2f} prompt tokens for each generated one, GRPO {GRPO:.2f}".format(**read) in text
    first = {method: cells.mean(method, 0, accuracy_at).mean() for method in RUNS}
    assert f"R^3's is {first['GRPO'] - first['R^3']:.3f} below GRPO's" in text
    ours = mean["R^3"] - mean["GRPO"]
    value = ", ".join(
        f"`{arm}` alone {mean_and_interval(cells.mean(arm, 60000) - mean['GRPO'])}" for arm in RUNS["R^3"]
    )
    assert value.replace("alone", "alone is", 1).replace(")", ") to GRPO", 1) in text
    end = {method: cells.mean(method, 60000, accuracy_at) for method in mean}
    lost = (
        mean_and_interval(end["R^3"] - end["GRPO"]),
        *(f"{(end['R^3'] - end[m]).mean():+.3f}" for m in ("rl_zvp", "grpo_extra")),
    )
    assert "R^3 is {} to GRPO, {} to RL-ZVP and {} to further answers".format(*lost) in text
    gained = dict(zip(cells.worlds, ours, strict=True))
    looks = np.mean([gained[w] for w in range(421, 438)]), np.mean([gained[w] for w in range(438, 441)])
    assert "R^3 less GRPO is {:+.3f} in the first 17 and {:+.3f} in the last three".format(*looks) in text


KINDS = ("replayed", "plain"), ("replayed", "reflection"), ("first epoch", "plain")


def test_where_sorting_is_lost_is_told_as_steps_and_replayed_answers_have_it():
    text = (RESULTS / SORTING / "README.md").read_text()
    assert [row for row in (*step_rows(), *gradient_rows(), *asked_rows()) if row not in text] == []
    steps = [row for row in steps_of(SORTING) if row["arm"] in RUNS["R^3"] and int(row["step"]) >= 9]
    assert len(steps) > 200 and not any(float(row["asked_plainly"] or 0) for row in steps)
    with open(RESULTS / SORTING / "working.csv", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["arm"] in RUNS["R^3"]]
    answers, without = (
        {key: sum(int(row[column]) for row in rows if (row["kind"], row["prompt"]) == key) for key in KINDS}
        for column in ("answers", "without_working")
    )
    (plain, reflected, first), text = KINDS, " ".join(text.split())
    replayed = answers[plain] + answers[reflected]
    assert replayed == 2 * Cells(SORTING).count("R^3", "replayed_rows").sum()
    assert f"Of {replayed} replayed rows {answers[plain]} are answers to the plain prompt" in text
    assert f"{without[plain] + without[reflected]} have a working that does not give the answer in the box" in text
    assert without[reflected] == answers[reflected] and f"all {answers[reflected]} that reflection found" in text
    assert f"{without[first]:,} of the {answers[first]:,} different right plain answers" in text


def test_what_came_of_replaying_only_what_reflection_found_is_told_as_its_record_has_it():
    page, rows = (RESULTS / "luck" / "README.md").read_text(), steps_of("luck")
    assert [key for key, found in verdicts_of("luck").items() if verdict_row(found) not in page] == []

    def mean(arm: str, column: str, steps) -> float:
        of_arm = (row for row in rows if row["arm"] == arm and int(row["step"]) in steps)
        return np.mean([float(row[column]) for row in of_arm if row[column]])

    arms, text, late = ("reflected", "r3"), " ".join(page.split()), range(9, 99)
    replayed, norm = ([mean(arm, of, late) for arm in arms] for of in ("replayed_rows", "grad_norm"))
    before = [mean(arm, "grad_norm", range(1, 9)) for arm in arms]
    assert "it replayed {:.2f} rows a step, `r3` {:.2f}".format(*replayed) in text
    assert "norm was {:.2f}, with `r3` {:.2f}; before step 9 it is {:.2f} and {:.2f}".format(*norm, *before) in text
    for step in (5, 10, 15):
        assert "{:.3f} and {:.3f}".format(*(mean(arm, "pass@1", [step]) for arm in arms)) in text


def test_what_came_of_asking_ahead_by_the_way_drawn_is_told_as_its_record_has_it():
    page, ways = (RESULTS / "ahead" / "README.md").read_text(), ("by_reflection", "plainly")
    assert [key for key, found in verdicts_of("ahead").items() if verdict_row(found) not in page] == []
    rows = [row for row in steps_of("ahead") if int(row["step"]) >= 5]

    def number(arm: str, column: str) -> int:
        return sum(int(row[column] or 0) for row in rows if row["arm"] == arm)

    asked, found = ([number("by_way", f"{what}_{way}") for way in ways] for what in ("asked", "found"))
    text = " ".join(page.split())
    assert "it asked {} all-wrong groups by reflection and {} plainly, and".format(*asked) in text
    assert "found a right answer for {} and {}; `r3` asked ".format(*found) in text
    ours = [number("r3", f"{what}_by_reflection") for what in ("asked", "found")]
    assert "`r3` asked {} by reflection and found {} ".format(*ours) in text and not number("r3", "asked_plainly")
    assert round(sum(found) / ours[1]) == 3 and "it found three times as much for such groups" in text
    values = verdicts_of("ahead")["sorting_ahead"]["values"]
    left_out = {world: np.mean([value for key, value in values.items() if key != world]) for world in ("151", "145")}
    told = "without world 151 ({:+.3f}) it is {:+.3f}, without 145 ({:+.3f}) {:+.3f}, both"
    assert told.format(values["151"], left_out["151"], values["145"], left_out["145"]) in text


def test_readme_and_docs_have_both_families_as_their_verdicts_are():
    readme, docs = ((ROOT / page).read_text() for page in ("README.md", "docs/results.md"))
    assert [row for row in both_rows() if row not in readme or row not in docs] == []
    assert [row for row in (*rescue_rows(), *asked_rows()) if row not in docs] == []
    found = {name: verdicts_of(name)["over_grpo"] for name in FAMILIES}
    facts, sorting = (f"({one['low']:+.3f} to {one['high']:+.3f})" for one in found.values())
    text = " ".join(readme.split())
    facts_found, sorting_found = (row.split("|")[2].split(", ")[1].strip() for row in asked_rows())
    shares = f"{facts_found} in facts found a right answer, and {sorting_found} in sorting"
    assert f"Of the all-wrong groups that were asked under reflection, {shares}" in text
    assert f"is {found[FACTS]['estimate']:.3f} of Pass@1 above GRPO on average over the budget {facts}" in text
    assert f"it is {-found[SORTING]['estimate']:.3f} below {sorting}" in text


def test_what_the_docs_say_beside_the_tables_follows_from_the_records():
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    ends = {name: Cells(name) for name in FAMILIES}
    found = {
        (name, tokens): cells.mean("R^3", tokens, accuracy_at) - cells.mean("GRPO", cells.budget, accuracy_at)
        for name, cells in ends.items()
        for tokens in (cells.budget, 26000)
    }
    at = {key: (f"{abs(of.mean()):.3f}", mean_and_interval(of).partition(" ")[2]) for key, of in found.items()}
    full, paid, lost = at[FACTS, 30000], at[FACTS, 26000], at[SORTING, 60000]
    assert f"R^3 is {full[0]} above GRPO in facts {full[1]}, and {paid[0]} with its prompts paid for {paid[1]}" in text
    assert f"in sorting it is {lost[0]} below {lost[1]}" in text
    first = {
        (name, way): asked_again(name, RUNS["R^3"], way, steps)
        for name, steps in ((FACTS, 4), (SORTING, 8))
        for way in ("by_reflection", "plainly")
    }
    told_of = {key: f"{found:.0f} of {asked:.0f}" for key, (asked, found) in first.items()}
    assert (
        f"reflection found {told_of[FACTS, 'by_reflection']} in facts and {told_of[SORTING, 'by_reflection']}" in text
    )
    assert f"plain answers {told_of[FACTS, 'plainly']} and {told_of[SORTING, 'plainly']}" in text
    luck, ahead = verdicts_of("luck")["sorting_reflected"], verdicts_of("ahead")["sorting_ahead"]
    shown = f"{luck['estimate']:+.3f} of Pass@1 on average over the budget, {luck['low']:+.3f} to {luck['high']:+.3f}"
    assert shown in text
    assert f"({ahead['estimate']:+.3f}, {ahead['low']:+.3f} to {ahead['high']:+.3f})" in text


@pytest.mark.parametrize(("name", "verdict", "number"), [(FACTS, "on", 10), (SORTING, "unclear", 11)])
def test_the_probes_of_these_worlds_are_told_as_they_were(name, verdict, number):
    text, found = (ROOT / "docs" / "probe.md").read_text(), (RESULTS / name / "probe" / "check.md").read_text()
    [mean] = [line for line in found.splitlines() if line.startswith(f"| r3 | {verdict} | {number} | ")]
    [row] = [line for line in text.splitlines() if line.startswith(f"| {FAMILIES[name]} | 4")]
    assert f"| {verdict} in {number} of {number} | {mean.split(' | ')[3].removesuffix(' |')}" in row
    if name == FACTS:
        assert "Right in 5 of 10 " in found and "at least 0.02 in [5]" in row
