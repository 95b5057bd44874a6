"""`r3 report`: bands and thinning by hand numbers, arms, figures, sentences."""

import json
from pathlib import Path

import numpy as np
import pytest

from r3_ext.recipes import RECIPES
from r3_ext.record.summary import WAYS, generated_tokens
from r3_ext.report import figures, findings, opening, readers
from r3_ext.report.bands import interval, limits, seed_band, smooth, thin, window_of
from r3_ext.report.runs import Arm, Run, arms_of, find_folders, load_run
from tests.ext.reported import config_of, noisy_rows, training_row, write_run

pytestmark = pytest.mark.slow


# Bands


def test_three_seeds_have_the_t_interval_of_their_mean():
    # 1, 2, 3: s = 1, t with 2 degrees 4.3027, half width 4.3027 / sqrt(3) = 2.48417; the second point does not vary.
    mean, low, high = interval(np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]]))
    assert mean.tolist() == [2.0, 5.0]
    assert low == pytest.approx([2 - 2.48417, 5.0], abs=1e-4) and high == pytest.approx([2 + 2.48417, 5.0], abs=1e-4)


def test_two_seeds_have_minimum_and_maximum():
    mean, low, high = interval(np.array([[1.0, 7.0], [2.0, 3.0]]))
    assert (mean.tolist(), low.tolist(), high.tolist()) == ([1.5, 5.0], [1.0, 3.0], [2.0, 7.0])


def test_seeds_are_interpolated_to_every_common_x_and_end_with_the_first_of_them():
    band = seed_band([(np.array([0.0, 2.0, 4.0]), np.array([0.0, 2.0, 4.0])), (np.arange(4.0), np.zeros(4))])
    assert band.x.tolist() == [0, 1, 2, 3]
    assert band.y.tolist() == [0, 0.5, 1, 1.5] and band.high.tolist() == [0, 1, 2, 3]


def test_one_seed_is_its_own_line_and_seeds_that_do_not_meet_have_none():
    x, y = np.arange(5.0), np.array([3.0, 1.0, 4.0, 1.0, 5.0])
    band = seed_band([(x, y)])
    assert band.y is y and band.low is None and band.raw is None
    assert seed_band([(x, y), (x + 10, y)]) is None
    assert seed_band([]) is None and seed_band([(x[:0], y[:0])]) is None


def test_smoothing_averages_what_is_there_and_does_not_spread_a_huge_value():
    assert smooth(np.array([0.0, 3.0, 6.0]), 3).tolist() == [1.5, 3.0, 4.5]
    noise = np.random.default_rng(0).normal(size=300)
    slow = [noise[max(0, i - 3) : i + 4].mean() for i in range(300)]
    assert smooth(noise, 7) == pytest.approx(slow)
    assert smooth(np.array([1e30, *np.ones(9)]), 3)[2:].tolist() == [1.0] * 8
    assert [window_of(count) for count in (1, 100, 101, 1000)] == [1, 1, 3, 21]


def test_thinning_keeps_both_ends_and_every_extreme():
    y = np.random.default_rng(0).normal(size=10_000)
    y[[777, 5555]] = -50, 60
    kept = thin(y)
    assert len(kept) <= 400 and {0, 777, 5555, 9_999} <= set(kept.tolist()) and (np.diff(kept) > 0).all()
    assert thin(y[:400]).tolist() == list(range(400))


def test_an_outlier_does_not_stretch_the_axis_and_a_constant_has_one():
    values = np.linspace(1, 2, 100)
    low, high = limits(np.append(values, [1e30, -1e30]), floor=False)
    assert 0.9 < low < 1 and 2 < high < 2.1
    assert limits(values, floor=True)[0] == 0
    low, high = limits(np.array([0.7]), floor=False)
    assert low < 0.7 < high


# Runs and arms


def test_tokens_come_from_the_count_or_from_the_trained_rows():
    assert generated_tokens({"generated/tokens": 1500, "response_length/mean": 40.0}) == 1500
    # 10 rows of 30 prompt and 40 response tokens: 700 in all.
    verl = {"response_length/mean": 40.0, "prompt_length/mean": 30.0, "perf/total_num_tokens": 700}
    assert generated_tokens(verl) == 400
    assert generated_tokens({"response_length/mean": 40.0}) is None


def test_runs_that_differ_in_seed_and_folder_only_are_one_arm(tmp_path):
    made = (("one/a", 0, 1), ("one/b", 1, 1), ("two/a", 0, 2))
    folders = [write_run(tmp_path / name, [training_row(1)], config_of(s, name, k)) for name, s, k in made]
    arms = arms_of([load_run(folder) for folder in folders])
    assert [(arm.label, len(arm.runs)) for arm in arms] == [("one", 2), ("two", 1)]
    assert findings.facts(arms[0])["Seeds"] == "0, 1"
    labelled = arms_of([load_run(folder, label) for folder, label in zip(folders, "xyx", strict=True)])
    assert [(arm.label, len(arm.runs)) for arm in labelled] == [("x", 2), ("y", 1)]


@pytest.mark.parametrize("key", [key for recipe in RECIPES.values() for key in recipe.files])
def test_where_a_recipe_keeps_its_file_makes_no_arm_of_its_own(tmp_path, key):
    _, recipe, *path = key.split(".")
    folders = []
    for name in "ab":
        settings = str(tmp_path / name)
        for part in reversed(path):
            settings = {part: settings}
        folders.append(write_run(tmp_path / name, [training_row(1)], {"algorithm": {recipe: settings}}))
    assert [len(arm.runs) for arm in arms_of([load_run(folder) for folder in folders])] == [2]


def test_without_a_config_every_run_is_an_arm_of_its_own(tmp_path):
    folders = [write_run(tmp_path / "runs" / name, [training_row(1)]) for name in "ab"]
    assert find_folders(tmp_path) == find_folders(tmp_path / "runs") == folders
    assert [arm.label for arm in arms_of([load_run(folder) for folder in folders])] == ["runs/a", "runs/b"]


def test_values_that_are_no_finite_numbers_are_counted_and_rows_of_a_step_joined(tmp_path):
    folder = write_run(tmp_path / "run", [])
    lines = ['{"step": 2, "a": NaN, "b": 1e999, "c": "text", "d": true, "e": [1]}', '{"step": 1, "a": 1}', "7"]
    lines += ['{"a": 5}', '{"step": 2, "a": 2, "big": 1' + "0" * 400 + "}", '{"step": 3, "torn']
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    run = load_run(folder)
    assert run.rows == [{"step": 1, "a": 1}, {"step": 2, "a": 2, "d": 1, "big": 1e30}]
    assert run.not_finite == {"a": 1, "b": 1} and run.remarks == []


def test_a_damaged_line_in_the_middle_is_told(tmp_path):
    folder = write_run(tmp_path / "run", [training_row(1)])
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"torn\n' + json.dumps(training_row(2)) + "\n")
    assert load_run(folder).remarks == ["line 2 of metrics.jsonl is damaged: it and all after it are left out"]


@pytest.mark.parametrize("content", ["[", "a: [b", "- list", "x" * 10 + "\x00", "a: &a [*a]"])
def test_a_damaged_config_is_a_remark(tmp_path, content):
    folder = write_run(tmp_path / "run", [training_row(1)])
    (folder / "config.yaml").write_text(content)
    run = load_run(folder)
    assert run.remarks == ["config.yaml cannot be read"] and len(run.rows) == 1


def test_a_config_that_stands_for_more_than_memory_holds_is_a_remark(tmp_path):
    folder = write_run(tmp_path / "run", [training_row(1)])
    doubling = "\n".join(f"k{i}: &k{i} [*k{i - 1}, *k{i - 1}]" for i in range(1, 60))
    (folder / "config.yaml").write_text(f"k0: &k0 [1, 2]\n{doubling}\n")
    assert load_run(folder).remarks == ["config.yaml cannot be read"]


# Figures


def test_the_ledger_adds_up_to_all_groups_though_some_are_both_replayed_and_ranked():
    assert readers.ledger(training_row(1)) == [3, 3, 1, 0, 1]
    # Of three all wrong none is left, of two all right one.
    assert [share(training_row(1)) for share in readers.RESCUED] == [1, 1 / 2]
    assert readers.RESCUED[0](training_row(1, **{"groups/all_wrong": 0, "groups/all_correct": 5})) is None


@pytest.mark.parametrize("by", ["step", "tokens"])
def test_stacked_layers_add_up_at_every_drawn_point(tmp_path, by):
    runs = [Run(tmp_path / str(seed), noisy_rows(seed, 300)) for seed in range(3)]
    sections, _ = figures.all_sections([Arm("r3", runs)], by)
    panel = next(section for section in sections if section.key == "groups").panels[1]
    assert len(panel.stack_x) > 100
    assert np.sum([y for _, _, y in panel.layers], axis=0) == pytest.approx(128)
    panel = next(section for section in sections if section.key == "time").panels[1]
    assert [(name, y[0]) for name, _, y in panel.layers] == [("gen", 2.0), ("update_actor", 1.0), ("other", 1.0)]


def test_validation_takes_the_logged_interval_and_else_verls_mean(tmp_path):
    own = {"val/a/b/pass@1": 0.3, "val/a/b/pass@1/low": 0.2, "val/a/b/pass@1/high": 0.5, "val/a/b/pass@8": 0.9}
    rows = [{"step": 0, **own, "val-core/c/acc/mean@4": 0.25}]
    arm = Arm("r3", [Run(tmp_path, rows)])
    assert arm.runs[0].benchmarks == ["a/b", "c"]
    band = figures.validation_band(arm, "a/b", "step")
    assert (band.y[0], band.low[0], band.high[0]) == (0.3, 0.2, 0.5)
    assert figures.validation_band(arm, "c", "step").y.tolist() == [0.25]
    assert readers.mean_pass_at_1(arm.runs[0])(rows[0]) == pytest.approx(0.275)
    (section,) = [one for one in figures.all_sections([arm], "step")[0] if one.key == "validation"]
    assert [panel.styles for panel in section.panels] == [("Pass@1", "Pass@8"), ()]


def test_what_no_run_logged_is_named():
    arm = Arm("r3", [Run(Path("run"), [{"step": 1, "actor/entropy": 0.5}])])
    sections, empty = figures.all_sections([arm], "step")
    assert [section.key for section in sections] == ["dynamics"]
    assert sections[0].notes == ["Not logged by any run: Solve-all, Solve-none, Mean reward."]
    assert "Validation" in empty and "Time per phase" in empty


def asked_row(step, asked, found, tokens, **extra):
    """Of a step that asked so many all-wrong groups again: by reflection, plainly and, if given, by restarts."""
    counts = {"asked": asked, "found": found, "tokens": tokens}
    by = {
        f"reflection/by_{way}/{name}": value
        for name, values in counts.items()
        for way, value in zip(WAYS, values, strict=False)
    }
    return training_row(step, **by, **extra)


def reflection_of(*arms):
    return next(section for section in figures.all_sections(list(arms), "step")[0] if section.key == "reflection")


def test_all_wrong_groups_that_were_asked_again_are_shown_by_way():
    share = "reflection/by_reflection/share"
    rows = [
        asked_row(1, (3, 1), (2, 0), (300, 80), **{share: 0.5}),
        asked_row(2, (1, 3), (1, 0), (90, 260), **{share: 0.9}),
    ]
    section = reflection_of(Arm("r3", [Run(Path("run"), rows)]))
    panels = {panel.title: panel for panel in section.panels}
    layers = {name: y.tolist() for name, _, y in panels["All-wrong groups asked again"].layers}
    assert layers == {
        "reflection: right answer found": [2, 1],
        "reflection: none": [1, 0],
        "plain: right answer found": [0, 0],
        "plain: none": [1, 3],
    }
    assert panels["Next asked by reflection"].curves[0].band.y.tolist() == [0.5, 0.9]
    told = "reflection 4, found 3: 130 tokens each; plain 4, found 0: nothing for 340 tokens"
    assert f"All-wrong groups asked again, {told}." in section.notes
    assert {"Batches waited for the answers", "Groups held for the next step"}.isdisjoint(panels)


def test_restarts_are_a_way_of_their_own():
    rows = [asked_row(step, (0, 2, 4), (0, 1, 3), (0, 80, 60)) for step in (1, 2)]
    section = reflection_of(Arm("r3", [Run(Path("run"), rows)]))
    [panel] = [panel for panel in section.panels if panel.title == "All-wrong groups asked again"]
    layers = {name: y.tolist() for name, _, y in panel.layers}
    assert layers["restart: right answer found"] == [3, 3] and layers["restart: none"] == [1, 1]
    assert "restart 8, found 6" in section.notes[-1]


def test_a_way_that_nothing_was_asked_by_has_no_layer_and_each_arm_its_own_sentence():
    once = Arm("once", [Run(Path("a"), [asked_row(1, (2, 0), (1, 0), (50, 0), **{"reflection/at_once/wait_s": 0.5})])])
    held = Arm("held", [Run(Path("b"), [asked_row(1, (4, 0), (0, 0), (80, 0), **{"groups/held": 4})])])
    section = reflection_of(once, held, Arm("later", [Run(Path("c"), [training_row(1)])]))
    titles = [panel.title for panel in section.panels]
    assert titles[-4:] == [
        *("All-wrong groups asked again, once", "All-wrong groups asked again, held"),
        *("Batches waited for the answers", "Groups held for the next step"),
    ]
    assert [key.label for key in section.legend if key.shape == "area"] == [
        "reflection: right answer found",
        "reflection: none",
    ]
    assert [note for note in section.notes if "asked again," in note] == [
        "once: all-wrong groups asked again, reflection 2, found 1: 50 tokens each.",
        "held: all-wrong groups asked again, reflection 4, found 0: nothing for 80 tokens.",
    ]


def test_a_run_that_asks_at_the_next_visit_shows_nothing_of_asking_sooner():
    section = reflection_of(Arm("r3", [Run(Path("run"), [training_row(1), training_row(2)])]))
    assert [panel.title for panel in section.panels] == ["Reflection prompts"]
    assert not any("asked again" in note or "held" in note for note in section.notes)
    assert not any(key.shape == "area" for key in section.legend)


def test_alarms_are_marked_or_said_to_be_silent():
    def section(values):
        rows = [{"step": step, "alarm/length": value} for step, value in enumerate(values, start=1)]
        return figures.all_sections([Arm("r3", [Run(Path("run"), rows)])], "step")[0][0]

    assert [x.tolist() for _, x in section([0, 1, 1]).panels[0].marks[0][1]] == [[2, 3]]
    assert section([0, 0]).notes == ["Not raised in any step: alarm/length."]


# Sentences


def said(rows, **run):
    return findings.findings([Arm("r3", [Run(Path("run"), rows, config={"a": 1}, **run)])])


@pytest.mark.parametrize(("accuracy", "warned"), [((0.5, 0.505), True), ((0.5, 0.52), False)])
def test_truncation_that_rises_without_accuracy_is_a_warning(accuracy, warned):
    ends = zip((0.1, 0.2), accuracy, strict=True)
    changes = [{"fresh/truncated/mean": cut, "fresh/acc/mean": right} for cut, right in ends]
    rows = [training_row(step, **changes[step > 5]) for step in range(1, 11)]
    texts = [one.text for one in said(rows) if one.warning]
    expected = "Truncation rose from 10 % to 20 % while accuracy did not (50 % → 50.5 %)."
    assert [text.replace("\xa0", " ") for text in texts] == [expected] * warned


def test_rescued_groups_are_summed_over_steps():
    text = opening.rescued_said([Run(Path("run"), [training_row(1), training_row(2)])])
    assert "10 of 16 groups" in text
    assert "R^3 rescued 8 of them (6 by replay of past answers, 2 by ranking alone)" in text


def test_arms_are_compared_at_the_tokens_that_all_of_them_reached():
    def arm(label, tokens, scores):
        rows = [{"step": i, "generated/tokens": tokens, "val/a/pass@1": score} for i, score in enumerate(scores)]
        return Arm(label, [Run(Path("run"), rows, label=label)])

    # After 100, 200, 300 tokens against 200, 400, 600: at 300, the second is half way from 0.4 to 0.6.
    (one,) = findings.equal_tokens_said([arm("x", 100, [0.1, 0.2, 0.3]), arm("y", 200, [0.4, 0.6, 0.8])])
    assert one.text.replace("\xa0", " ") == "At 300 generated tokens, validation Pass@1: x 30 %, y 50 %."


@pytest.mark.parametrize(
    ("values", "text"), [([0.5], "0.5"), ([0.5, 0.25], "0.25–0.5"), ([1.0, 2.0, 3.0], "2 ± 2"), ([], "–")]
)
def test_numbers_over_seeds(values, text):
    assert findings.over_seeds(values).replace("\xa0", " ") == text


def test_restarts_are_set_against_fresh_attempts_and_what_is_of_no_use_is_told_with_the_way_out():
    def said(own: float, number: int = 800) -> findings.Finding:
        compared = {"restart/compared": number, "restart/success": own, "restart/fresh_success": 0.25}
        [found] = findings.restarts_said(Arm("rrl", [Run(Path("run"), [{"step": 1} | compared])]))
        return found

    assert (said(0.5).warning, said(0.25).warning, said(0.2).warning) == (False, False, True)
    assert (said(0.2, number=8).warning, said(0.0, number=8).warning) == (False, True), "of few it is chance"
    assert said(0.1).text.endswith("set algorithm.rrl.restarts.share=0, or another algorithm.rrl.states.origin.")


@pytest.mark.parametrize(
    ("fresh", "right", "is_of_no_use"), [(-0.1, 0.75, False), (0.7, 0.75, True), (-0.1, 0.0, True)]
)
def test_restarts_of_which_few_can_be_compared_are_told_with_all_of_them(fresh, right, is_of_no_use):
    """What fresh attempts rose by meanwhile is taken off their success, which may leave less than nothing."""
    made = {"restart/rows": 80, "restart/acc/mean": right}
    made |= {"restart/compared": 8, "restart/success": 0.0, "restart/fresh_success": fresh}
    [found] = findings.restarts_said(Arm("rrl", [Run(Path("run"), [{"step": 1} | made])]))
    text, others = found.text.replace("\xa0", " "), f"({100 * right:.0f} % of all 80 restarts)"
    assert (
        f"8 restarts succeeded in 0 %, fresh attempts at the same problems in {max(0, 100 * fresh):.0f} % {others}"
        in text
    )
    assert found.warning is is_of_no_use is ("do not help" in text)
