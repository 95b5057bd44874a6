"""`r3 report`: bands and thinning by hand numbers, arms, figures, sentences, and a page that survives hostile files."""

import json
import math
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import yaml

from r3_ext.record.folder import append
from r3_ext.report import figures, findings, opening, readers
from r3_ext.report.bands import interval, limits, seed_band, smooth, thin, window_of
from r3_ext.report.command import main, write
from r3_ext.report.runs import Arm, ReportError, Run, arms_of, find_folders, generated_tokens, load_run
from r3_ext.run.finish import report_line

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>&\"'$x_{1}$\x00\x1b[31m\ud800"


def training_row(step, **extra):
    """A row of R^3: 8 groups, 3 mixed, 4 of 5 dead ones rescued, one of these by ranking alone and one by both."""
    groups = {"total": 8, "mixed": 3, "all_correct": 2, "all_wrong": 3}
    groups |= {"rescued_by_replay": 3, "ranked": 2, "still_dead": 1, "still_wrong": 0}
    return {
        "step": step,
        "training/global_step": step,
        "generated/tokens": 1000,
        "fresh/tokens": 900,
        "reflection/tokens": 100,
        "replay/tokens": 50,
        "fresh/score/mean": 1 + 0.01 * step,
        "fresh/acc/mean": 0.5,
        "fresh/truncated/mean": 0.1,
        "response_length/mean": 40.0,
        "actor/entropy": 1 / step,
        "timing_s/gen": 2.0,
        "timing_s/update_actor": 1.0,
        "timing_s/step": 4.0,
        "reflection/prompts": 2,
        "reflection/solved": 1,
        **{f"groups/{name}": count for name, count in groups.items()},
        **extra,
    }


def write_run(folder, rows, config=None, **files):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def noisy_rows(seed, steps):
    """Rows of many metrics with noise, of which the drawn lines must keep the extremes."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(1, steps + 1):
        correct, wrong, replayed, left = rng.integers([0, 0, 0, 0], [40, 40, 20, 10])
        dead = int(correct + wrong + replayed + left)
        row = training_row(step, **{"groups/all_correct": dead, "groups/all_wrong": 0, "groups/total": 128})
        row |= {
            "groups/mixed": 128 - dead,
            "groups/rescued_by_replay": int(replayed),
            "groups/still_dead": int(left),
            "groups/still_wrong": 0,
        }
        names = ("actor/entropy", "fresh/score/mean", "replay/age/mean", "replay/ratio/p99", "replay/ratio/p01")
        row |= {name: float(value) for name, value in zip(names, rng.lognormal(size=len(names)), strict=True)}
        row |= {f"other/{number}": float(rng.random()) for number in range(100)}
        if step % 5 == 0:
            row |= {f"val/{name}/pass@1": float(rng.random()) for name in ("aime24", "math500")}
        rows.append(row)
    return rows


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


def config_of(seed, folder, k=1):
    trainer = {"default_local_dir": str(folder), "v1": {"trainer_mode": "r3"}}
    return {"data": {"seed": seed}, "trainer": trainer, "algorithm": {"r3": {"replay": {"k": k, "enable": True}}}}


def test_runs_that_differ_in_seed_and_folder_only_are_one_arm(tmp_path):
    made = (("one/a", 0, 1), ("one/b", 1, 1), ("two/a", 0, 2))
    folders = [write_run(tmp_path / name, [training_row(1)], config_of(s, name, k)) for name, s, k in made]
    arms = arms_of([load_run(folder) for folder in folders])
    assert [(arm.label, len(arm.runs)) for arm in arms] == [("one", 2), ("two", 1)]
    assert findings.facts(arms[0])["Seeds"] == "0, 1"
    labelled = arms_of([load_run(folder, label) for folder, label in zip(folders, "xyx", strict=True)])
    assert [(arm.label, len(arm.runs)) for arm in labelled] == [("x", 2), ("y", 1)]


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


# The page


class Tags(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = set(), [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def page_of(arguments, **options):
    return write(arguments, **options).read_text()


def test_a_thousand_steps_of_three_runs_are_under_five_megabytes(tmp_path):
    runs = [write_run(tmp_path / f"seed_{seed}", noisy_rows(seed, 1000), config_of(seed, "x")) for seed in range(3)]
    path = write(runs, labels=["a", "b", "c"], out=tmp_path / "out")
    assert path.stat().st_size < 5_000_000
    pngs = sorted(file.stem for file in (tmp_path / "out" / "figures").iterdir())
    assert pngs == ["dynamics", "groups", "lengths", "reflection", "replay", "time", "tokens", "validation"]


def test_text_from_files_is_text_on_the_page(tmp_path):
    name = HOSTILE.replace("\x00", "").replace("\ud800", "")
    keys = {f"val/{HOSTILE}/pass@1": 0.5, f"alarm/{HOSTILE}": 1, f"timing_s/{HOSTILE}": 1.0, f"nan/{HOSTILE}": math.nan}
    config = config_of(0, "x") | {"actor_rollout_ref": {"model": {"path": "<b>model</b>"}}}
    machine = {"command": HOSTILE, "versions": {HOSTILE: HOSTILE}, "git": {"commit": HOSTILE}, "machine": [HOSTILE]}
    rows = [training_row(1, **keys)]
    folder = write_run(tmp_path / "a" / name, rows, config, environment=machine, summary={"exit_code": HOSTILE})
    other = write_run(tmp_path / "b" / name, rows)
    hard = {"name": HOSTILE, "benchmarks": {HOSTILE: {"pass_at_k": {"1": [0.1, 0.0, 0.2], "2": [0.2, 0.1, 0.3]}}}}
    (tmp_path / "hard.json").write_text(json.dumps({"runs": [hard]}))
    page = Tags(page_of([folder, other], hard=tmp_path / "hard.json", out=tmp_path / "out", labels=[HOSTILE, "b"]))
    assert not page.tags & {"img", "script", "b\x3e", "iframe", "object", "link"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "<img src=x onerror=alert(1)>" in page.text and "\x1b" not in page.text
    assert {value[0] for name, value in page.attributes if name in ("href", "src", "xlink:href")} == {"#"}


def test_the_page_opens_with_what_to_know_and_three_sentences(tmp_path):
    folder = write_run(tmp_path / "run", [training_row(1)])
    arguments = {"options": {"profile": "embedded", "method": "r3"}, "sources": {"DATA": "a"}, "overrides": []}
    append(folder, "start", folder=str(folder), files={}, arguments=arguments)
    append(folder, "end", seconds=1.0, exit_code=75)
    run = load_run(folder)
    (caution,) = opening.cautions([run])
    sentences = [text.replace("`", "") for text in opening.opening([Arm("r3", [run])])]
    text = Tags(page_of([folder])).text
    places = [text.index(part) for part in (caution, *sentences, "Training dynamics", "What was run")]
    assert places == sorted(places) and len(sentences) == 3
    assert "<code>r3 resume " in (folder / "report.html").read_text()


def test_ids_are_unique_and_every_reference_has_one(tmp_path):
    page = page_of([write_run(tmp_path / "run", noisy_rows(0, 30))])
    attributes = Tags(page).attributes
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    links = {value[1:] for name, value in attributes if name == "href"}
    links |= {value[5:-1] for name, value in attributes if value and value.startswith("url(#")}
    assert links <= set(ids)
    assert "http:" not in page and "https:" not in page and "url(http" not in page


def test_every_figure_has_a_name_for_those_who_do_not_see_it(tmp_path):
    page = page_of([write_run(tmp_path / "run", [training_row(1), training_row(2)])])
    attributes = Tags(page).attributes
    labels = [value for name, value in attributes if name == "aria-label"]
    assert page.count('role="img"') == page.count("<figure>") > 10
    assert "Mean reward, reward, by training step. run: from 1.01 to 1.02." in [
        label.replace(f"{tmp_path.name}:", "run:") for label in labels
    ]


def test_the_report_is_the_same_when_made_again(tmp_path):
    folder = write_run(tmp_path / "run", noisy_rows(0, 20))
    assert page_of([folder]) == page_of([folder])


@pytest.mark.parametrize(
    "rows",
    [
        [training_row(1)],
        [{"step": 0, "val/a/pass@1": 0.5}],
        [training_row(1), {"step": 2}],
        [{"step": 5}],
        [training_row(step, **{"actor/entropy": 10.0 ** (60 * step - 90)}) for step in range(1, 4)],
        [training_row(step, **{"replay/ratio/p99": 0.0, "timing_s/step": -1.0}) for step in range(1, 3)],
        [training_row(1e300), training_row(2)],
    ],
    ids=["one step", "validation only", "empty row", "nothing known", "huge", "zero on a log axis", "huge step"],
)
@pytest.mark.parametrize("by", ["step", "tokens"])
def test_odd_runs_have_a_page_or_a_sentence(tmp_path, rows, by):
    folder = write_run(tmp_path / "run", rows)
    try:
        assert "Headline numbers" in page_of([folder], by=by)
    except ReportError as error:
        assert by == "tokens" and "logged no count of tokens" in str(error)


def test_a_figure_of_an_earlier_report_does_not_stay(tmp_path):
    folder = write_run(tmp_path / "run", [training_row(1, **{"val/a/pass@1": 0.5})])
    write([folder])
    assert (folder / "figures" / "validation.png").exists()
    write_run(folder, [training_row(1)])
    write([folder])
    assert not (folder / "figures" / "validation.png").exists() and (folder / "figures" / "dynamics.png").exists()


def test_a_run_without_metrics_is_left_out_and_said(tmp_path):
    folders = [write_run(tmp_path / "full", [training_row(1)]), write_run(tmp_path / "empty", [])]
    assert f"Left out: {tmp_path.name}/empty has no metrics yet." in Tags(page_of(folders, out=tmp_path)).text


def test_errors_are_one_sentence_and_exit_code_2(tmp_path, capsys):
    folder = write_run(tmp_path / "full", [{"step": 1, "actor/entropy": 0.1}])
    empty = write_run(tmp_path / "empty", [])
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "torn.json").write_text('{"runs')
    (tmp_path / "file").write_text("")
    cases = {
        ("n" * 300,): "cannot be read: File name too long",
        (str(tmp_path / "nowhere"),): "name a run folder or an experiment",
        (str(empty),): "no metrics yet",
        (str(folder), "--labels", "a", "b"): "got 2 for 1",
        (str(folder), "--by", "tokens"): "use --by step",
        (str(folder), "--hard", str(tmp_path / "list.json")): "is not the hard.json",
        (str(folder), "--hard", str(tmp_path / "torn.json")): "cannot be read",
        (str(folder), "--out", str(tmp_path / "file" / "x")): "cannot be written",
    }
    for arguments, sentence in cases.items():
        assert main(list(arguments)) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and sentence in error and error.count("\n") == 1


@pytest.mark.parametrize("name,out", [("report.html", ""), ("page.html", "page.html"), ("figures/groups.png", "")])
def test_files_of_others_stay_and_own_ones_are_made_anew(name, out, tmp_path, capsys):
    run, paper = write_run(tmp_path / "run", [training_row(1)]), tmp_path / "paper"
    (paper / name).parent.mkdir(parents=True)
    (paper / "table.html").write_text("<title>Table 1</title>")
    (paper / name).write_text("theirs")
    assert main([str(run), "--out", str(paper / out)]) == 2
    assert "take another --out" in capsys.readouterr().err and (paper / name).read_text() == "theirs"
    assert {path.name for path in paper.rglob("*") if path.is_file()} == {"table.html", Path(name).name}
    (paper / name).unlink()
    for other in ("", "second.html"):  # beside a page of ours the figures are ours
        assert main([str(run), "--out", str(paper / other)]) == 0


def test_the_closing_line_of_a_run_names_the_page_or_why_there_is_none(tmp_path):
    folder = write_run(tmp_path / "run", [training_row(1)])
    assert report_line(folder).endswith("run/report.html") and (folder / "report.html").exists()
    assert report_line(write_run(tmp_path / "empty", [])).startswith("no report: no metrics yet in")
    assert report_line(folder, limit_s=0.01).startswith("no report: drawing took over 0.01 s")
