"""`r3 probe` without a model: a reward function of the user's own, the report, the check against a study."""

import json
import re
import shutil

import numpy as np
import pytest

from r3_ext.cli import main
from r3_ext.evaluate import EvaluationError
from r3_ext.r3.probe import check, figure, report, verdicts
from r3_ext.r3.probe.judge import asking
from r3_ext.settings.compose import compose_config
from r3_ext.study.design import read_design
from tests.ext.probed import plain_of, random_answers, reflected_of, report_of

# a reward function of the user's own

FUNCTION = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    assert (data_source, extra_info["at"]) == ("mine", ground_truth["at"])
    with open(ground_truth["log"], "a") as log:
        log.write(solution_str)
    if solution_str == "raise":
        raise KeyError("x")
    return {"score": float(solution_str), "acc": float(solution_str) > 0.4} if solution_str < "5" else 0.5
"""


@pytest.fixture
def judge(tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTION)
    truth = {"log": str(tmp_path / "log")}
    row = {"data_source": "mine", "prompt": [{"role": "user", "content": "?"}]}
    rows = [row | {"reward_model": {"ground_truth": truth | {"at": at}}, "extra_info": {"at": at}} for at in range(2)]
    overrides = [f"reward.custom_reward_function.path={tmp_path / 'mine.py'}", "reward.reward_kwargs.correct_from=0.75"]
    config = compose_config(["+profile=embedded", "+method=r3", *overrides])
    with asking(config, rows) as judge:
        yield judge


def test_the_grader_takes_any_of_the_accepted_answers_and_refuses_what_is_none():
    row = {"reward_model": {"ground_truth": ["1/3", "7"]}}
    config = compose_config(["+profile=embedded", "+method=r3"])
    with asking(config, [row]) as judge:
        found = judge.verdicts([(0, r"\boxed{7}"), (0, r"\boxed{7} and so on"), (0, r"\boxed{\frac13}"), (0, "7")])
        assert [judge.is_correct(verdict) for verdict in found] == [True, True, True, False]
    with pytest.raises(ValueError, match="must be an answer"), asking(config, [{"reward_model": {"ground_truth": {}}}]):
        pass


def test_the_function_is_given_its_row_and_asked_once_for_a_text(judge, tmp_path):
    rows = [{"index": at, "response": text} for at, text in ((0, "0.5"), (1, "0.5"), (0, "0.2"), (0, "0.5"), (1, "7"))]
    rows.append({"index": 0, "response": "raise"})
    assert judge(rows, [""] * 6) == [(None, verdict) for verdict in (True, True, False, True, False, None)]
    assert [verdict.score for verdict in judge.verdicts([(0, "0.2"), (1, "7"), (0, "raise")])] == [0.2, 0.5, 0]
    assert sorted((tmp_path / "log").read_text().replace("raise", "")) == sorted("0.50.50.27")
    assert judge.failures == 1


def test_a_function_that_fails_on_every_answer_ends_the_probe(judge):
    with pytest.raises(EvaluationError, match=r"a score for no answer; for the first it raised KeyError"):
        judge.verdicts([(0, "raise"), (1, "raise")])


# the report


@pytest.mark.parametrize("all_right", [False, True])
def test_the_report_is_json_a_page_of_text_and_a_picture(all_right, tmp_path):
    plain, reflected = random_answers(0, problems=40)
    if all_right:  # nobody is hard: no figure of reflection is a number
        plain, reflected = plain_of([[1] * 8] * 40), reflected_of([0] * 40, [0] * 40, [0] * 40)
    report.write(tmp_path, report_of(plain, reflected))
    found = json.loads((tmp_path / "probe.json").read_text(), parse_constant=pytest.fail)
    assert (tmp_path / "probe.png").read_bytes().startswith(b"\x89PNG")
    assert sum(found["right_answers"]["problems"]) == 40
    assert sum(found["right_answers"]["hard"]) == found["asked_again"] == reflected.hard_P.sum()
    lines = "\n".join(report.text(found)).splitlines()
    names = *verdicts.MECHANISMS, "sooner"
    assert len(lines) <= 30 and all(f"{name}:" in "\n".join(lines) for name in names)
    assert "as many as 4.0 training steps" in lines[-1]


def test_a_probe_that_says_off_throughout_names_grpo_and_keeps_the_overrides():
    found = report_of(plain_of([[1] * 8] * 200), reflected_of([0] * 200, [0] * 200, [0] * 200))
    assert found["r3"] == "off"
    expected = "r3 run --profile embedded --world seed=1 --method grpo 'a.b='\"'\"'c d'\"'\"''"
    assert report.command(found) == expected
    found["settings"]["world"] = None
    assert report.command(found) == "MODEL=m DATA='d e' VAL_DATA=FILE " + expected.replace("--world seed=1 ", "")
    found["settings"]["val_data"] = "v"
    assert " VAL_DATA=v " in report.command(found)


def test_markers_of_the_picture_tell_every_verdict_apart():
    assert set(figure.FILL) == {"on", "off", "unclear"} and len(set(figure.FILL.values())) == 3
    assert set(figure.REACH) == set(verdicts.MECHANISMS)


# the check


def curves_of(cells: dict[str, dict[int, float]]) -> dict:
    return {
        arm: {seed: (np.array([0.0, 60_000.0]), np.array([0.3, end])) for seed, end in ends.items()}
        for arm, ends in cells.items()
    }


def test_effects_are_the_contrasts_of_the_plan_in_their_kind_of_world():
    design = read_design(check.EXAMPLES / "studies" / "worlds.yaml")
    ends = {"none": 0.5, "ccr": 0.6, "isr": 0.5, "serr": 0.5, "no_ccr": 0.5, "no_isr": 0.6, "no_serr": 0.6, "r3": 0.6}
    curves = curves_of({f"main/{arm}": {13: end, 14: 0.5} for arm, end in ends.items()})
    curves |= curves_of({"main/grpo": {13: 0.55}, "reflection_0/r3": {13: 0.4}, "reflection_0/grpo": {13: 0.5}})

    def effect(world, mechanism, seed=13):
        gained, matters = check.effect(check.Row(world, seed, mechanism, "on"), design, curves)
        assert matters == (0 if gained is None else 0.05)
        return gained

    assert effect("", "replay") == pytest.approx(0.1) and effect("", "replay", 14) == pytest.approx(0)
    assert (effect("", "reflection"), effect("", "ranking")) == pytest.approx((0, 0))
    assert effect("", "r3") == pytest.approx(0.05) and effect("", "r3", 14) is None
    assert effect("reflection=0", "r3") == pytest.approx(-0.1) and effect("reflection=0", "replay") is None
    assert effect("reflection=0.0", "r3") == pytest.approx(-0.1)
    assert effect("mistaken=0", "r3") is None


FIRST_RULE, PRESENT_RULE = (check.EXAMPLES / "results" / name for name in ("probe_first_rule", "probe"))


def current(record, tmp_path):
    """The table of a record, which made anew is the same, and what it counts as right, of how many."""
    shutil.copytree(record, tmp_path / "kept")
    assert check.main(["--out", str(tmp_path / "kept")], print) == 0
    told = (record / "check.md").read_text()
    assert (tmp_path / "kept" / "check.md").read_text() == told
    right, of = map(int, re.search(r"Right in (\d+) of (\d+) that", told).groups())
    return told, right, of


def test_the_first_rules_record_is_current(tmp_path, capsys):
    told, right, of = current(FIRST_RULE, tmp_path)
    yes, all_r3 = (len(re.findall(rf"\| r3 \| on \| [-+0-9.]+ \| {end} \|", told)) for end in ("yes", "(?:yes|no)"))
    assert (right, of) == (8, 16) and (yes, all_r3) == (4, 8)


def test_the_present_rules_record_is_current(tmp_path, capsys):
    _, right, of = current(PRESENT_RULE, tmp_path)
    assert (right, of) == (9, 13)


@pytest.mark.parametrize("record", [FIRST_RULE, PRESENT_RULE], ids=lambda folder: folder.name)
def test_the_table_of_probes_says_what_the_present_rule_says_of_them(record):
    text = (check.EXAMPLES.parent / "docs" / "probe.md").read_text()
    names = {"mistaken=0,overlong=1,stuck=0.5,train=5-6,val=1-4": "all cut off"}
    for key, probe in json.loads((record / "probes.json").read_text()).items():
        figures, found = probe["figures"], verdicts.judge(probe["figures"], verdicts.LEAST, probe["foresight"])
        told = {name: "unclear" if v.verdict == "unclear" else f"**{v.verdict}**" for name, v in found.items()}
        short = lambda figure: verdicts.percent(figure).replace(" %", "")
        drawn = figures["drawn_with_reflection" if found["reflection"].verdict == "on" else "drawn"]
        kind, seed = key.rsplit(", ", 1)
        row = f"| {names.get(kind, kind)}, {seed} | {short(drawn)} {told['replay']} "
        row += f"| {short(figures['reflection/reach'])} {told['reflection']} "
        row += f"| {short(figures['rankable'])}, {short(probe['foresight']['auc'])} {told['ranking']} "
        row += f"| {probe['cost']['generated']:,} | {probe['cost']['steps']:.1f} |"
        assert row in text


def test_the_kept_figures_give_the_kept_verdicts_of_the_present_rule():
    kept = {(row.world, row.seed, row.mechanism): row.verdict for row in check.read(PRESENT_RULE / check.VERDICTS)}
    probes = json.loads((PRESENT_RULE / check.PROBES).read_text())
    assert len(kept) == len(check.CONTRASTS) * len(probes)
    for key, probe in probes.items():
        world, _, seed = key.rpartition(", ")
        found = verdicts.judge(probe["figures"], verdicts.LEAST, probe["foresight"])
        for name, verdict in found.items():
            assert kept["" if world == "default" else world, int(seed), name] == verdict.verdict, key


def test_every_contrast_of_the_check_is_in_a_plan():
    plans = [read_design(check.EXAMPLES / "studies" / f"{name}.yaml") for name in ("worlds", "rivals_facts")]
    names = {hypothesis.name for plan in plans for hypothesis in plan.hypotheses}
    assert {name for group in check.CONTRASTS.values() for name in group} <= names
    assert {"r3", *verdicts.MECHANISMS} == set(check.CONTRASTS)


def test_right_is_on_with_an_effect_that_matters_and_off_without():
    cases = {("on", 0.06, 0.05): True, ("on", 0.04, 0.05): False, ("off", 0.04, 0.05): True, ("off", 0.06, 0.05): False}
    cases |= {("unclear", 0.3, 0.05): None, ("on", None, 0.05): None, ("on", 0.04, 0.02): True}
    assert {case: check.is_right(*case) for case in cases} == cases


def test_the_table_counts_what_training_has_tested():
    design = read_design(check.EXAMPLES / "studies" / "worlds.yaml")
    rows = [
        check.Row("reflection=0", seed, "r3", verdict) for seed, verdict in ((13, "on"), (14, "off"), (15, "unclear"))
    ]
    assert "Right in" not in check.table(rows, design, {})
    ends = {"reflection_0/r3": {13: 0.6, 14: 0.6, 15: 0.4}, "reflection_0/grpo": {13: 0.5, 14: 0.5, 15: 0.5}}
    told = check.table(rows, design, curves_of(ends))
    assert "Right in 1 of 2 that training has tested" in told
    assert "| reflection=0 | 13 | r3 | on | +0.1000 | yes |" in told
    assert "| reflection=0 | 14 | r3 | off | +0.1000 | no |" in told
    assert "| r3 | unclear | 1 | -0.100 |" in told


def test_verdicts_are_added_kept_and_compared(tmp_path, monkeypatch, capsys):
    for seed, world in ((1, "seed=1"), (1, "reflection=0,mistaken=0,seed=1")):
        folder = tmp_path / world
        folder.mkdir()
        report.write(folder, report_of(*random_answers(seed, problems=40), world))
        assert main(["probe", "check", "--add", str(folder), "--out", str(tmp_path / "out")]) == 0
    rows = check.read(tmp_path / "out" / check.VERDICTS)
    assert [row.world for row in rows] == [""] * 4 + ["reflection=0,mistaken=0"] * 4
    assert (tmp_path / "out" / check.TABLE).read_text().rstrip() in capsys.readouterr().out
    (tmp_path / "own").mkdir()
    report.write(tmp_path / "own", report_of(*random_answers(1), world=None))
    assert main(["probe", "check", "--add", str(tmp_path / "own"), "--out", str(tmp_path / "out")]) == 2
    assert check.read(tmp_path / "out" / check.VERDICTS) == rows
