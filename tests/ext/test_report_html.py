"""`r3 report`: a page that survives hostile files, and what the command refuses."""

import json
import math
from html.parser import HTMLParser
from pathlib import Path

import pytest

from r3_ext.record.folder import append
from r3_ext.report import opening, run_facts
from r3_ext.report.command import main, write
from r3_ext.report.runs import Arm, ReportError, load_run
from r3_ext.run.finish import report_line
from tests.ext.reported import HOSTILE, config_of, noisy_rows, training_row, write_run

pytestmark = pytest.mark.slow


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
    (caution,) = run_facts.cautions([run])
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
