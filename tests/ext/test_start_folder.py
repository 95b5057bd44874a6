"""Later starts of a run: which folders are runs, what is read back from them, and when one is not begun again."""

import json
import os

import pytest

from r3_ext.record import folder as run_folder
from r3_ext.record.failure import error_lines
from r3_ext.record.metrics_file import MetricsFile
from r3_ext.record.summary import over_starts, read_cut, read_metrics, seconds_of
from r3_ext.settings.compose import compose_config
from tests.ext.started import begin, compare, start_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("here")]


def test_a_run_without_its_config_does_not_become_another_one(tmp_path):
    folder = begin("--run", "a")
    (folder / "config.yaml").unlink()
    assert compare(start_of("a", "--method", "grpo", resume=True)) == {}, "killed before it began: nothing is lost"
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(ValueError, match="config.yaml is gone"):
        compare(start_of("a", resume=True))


def test_a_moved_run_is_the_same_run_and_its_places_are_its_own():
    folder = begin("--run", "a")
    moved = folder.parent / "b"
    folder.rename(moved)
    assert compare(start_of("b", resume=True)) == {}
    for key in ("trainer.default_local_dir", "algorithm.r3.history.path"):
        with pytest.raises(ValueError, match=key):
            compare(start_of("b", f"{key}=elsewhere", resume=True))


def test_outputs_come_before_the_working_folder(tmp_path):
    inside = begin("--run", "a")
    begin("--run", "a", "--outputs", "other")
    os.rename(tmp_path / "other/r3_embedded/a", tmp_path / "a")
    assert start_of("a", resume=True).folder == inside
    assert start_of("--run", "a", "--outputs", "third").known == [], "for a new run no path is looked at"
    assert start_of("a", "--outputs", "third", resume=True).folder == tmp_path / "a"


@pytest.mark.parametrize(
    ("first", "then", "more"),
    [
        (["trainer.total_epochs=3"], ["trainer.total_epochs=4"], True),
        (["trainer.total_epochs=3"], ["trainer.total_epochs=2"], False),
        (["--until-tokens", "150"], ["--until-tokens", "50"], False),
        (["--until-tokens", "150"], ["--until-tokens", "300"], True),
        ([], ["trainer.save_freq=3"], False),
        ([], ["--wandb"], False),
        ([], ["--no-private"], False),
        ([], ["--change"], False),
        ([], ["data.seed=9", "--change"], True),
    ],
)
def test_a_finished_run_goes_on_only_where_there_is_more_to_do(first, then, more):
    begin("--run", "a", *first)
    start = start_of("a", *then, resume=True)
    assert start.is_finished and start.has_more_to_do(compare(start)) == more


def test_a_start_that_ended_meanwhile_is_noticed():
    folder = begin("--run", "a", ends=None)
    start = start_of("a", resume=True)
    run_folder.append(folder, "end", seconds=1.0, exit_code=0)
    with pytest.raises(ValueError, match="was started elsewhere meanwhile"):
        start.check_goes_on(-1, lambda text: None)


@pytest.mark.parametrize(
    "line",
    [
        {"event": "start"},
        {"event": "start", "when": 5},
        {"event": "end", "when": "2026-01-01T00:00:00+00:00", "seconds": 1.0},
        {"event": "start", "when": "2026-01-01T00:00:00+00:00", "folder": "x", "files": {}, "arguments": {}},
    ],
)
def test_a_record_of_another_shape_makes_no_run_and_hides_none(tmp_path, line):
    begin("--run", "a")
    other = tmp_path / "outputs/r3_embedded/other/starts.jsonl"
    other.parent.mkdir()
    other.write_text(json.dumps(line) + "\n")
    assert start_of("a", resume=True).name == "r3_embedded/a"
    with pytest.raises(ValueError, match="no run other"):
        start_of("other", resume=True)


@pytest.mark.parametrize("content", [b"", b"{", b"[]\n", b'{"event": "start"}\n', b"\xff\xfe\n", b'{"a":' * 100_000])
def test_a_folder_with_a_foreign_starts_file_is_no_run(tmp_path, content):
    folder = tmp_path / "outputs" / "r3_embedded" / "a"
    folder.mkdir(parents=True)
    (folder / "starts.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match="stays as it is"):
        start_of("--run", "a")
    assert (folder / "starts.jsonl").read_bytes() == content


def test_a_line_that_was_torn_gives_way_to_the_next():
    folder = begin("--run", "a", ends=None)
    file = folder / "starts.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"event": "end", "sec')
    assert len(run_folder.read_starts(folder)) == 1
    run_folder.append(folder, "end", seconds=1.0, exit_code=0)
    assert [line["event"] for line in run_folder.read_starts(folder)] == ["start", "end"]


def test_a_start_that_was_killed_counts_as_long_as_it_wrote(tmp_path):
    folder = begin("--run", "a", ends=None)
    began = run_folder.datetime.fromisoformat(run_folder.read_starts(folder)[0]["when"]).timestamp()
    (folder / "run.log").write_text("")
    os.utime(folder / "run.log", (began + 30, began + 30))
    start = start_of("a", resume=True)
    start.record(-1, compose_config(start.compose([])), {}, None)
    run_folder.append(folder, "end", seconds=5.0, exit_code=0)
    lines = run_folder.read_starts(folder)
    assert [line["event"] for line in lines] == ["start", "end", "start", "end"]
    assert seconds_of(lines) == pytest.approx(35.0)
    assert over_starts(lines, [])["starts"] == 2


def test_a_finished_run_without_checkpoint_is_not_begun_again():
    folder = begin("--run", "a")
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": step}) + "\n" for step in range(12)))
    start = start_of("a", resume=True)
    assert start.is_finished
    with pytest.raises(ValueError, match="no checkpoint"):
        start.check_goes_on(-1, lambda text: None)


class Display:
    def row(self, row: dict) -> None:
        pass


def test_rows_after_the_checkpoint_are_moved_and_not_lost(tmp_path):
    rows = [json.dumps({"step": step, "generated/tokens": 10}) for step in range(1, 6)]
    text = "\n".join([*rows[:2], "damaged", '{"step": NaN}', "5", *rows[2:], '{"step": 6, "torn'])
    (tmp_path / "metrics.jsonl").write_text(text)
    file = MetricsFile(tmp_path, 3, Display())
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3] and file.tokens == 30
    cut = (tmp_path / "metrics_cut.jsonl").read_text().splitlines()
    assert sorted([*rows[:3], *cut]) == sorted(text.splitlines())
    assert over_starts([], read_cut(tmp_path / "metrics_cut.jsonl"))["trained_again"]["generated_tokens"] == 20
    MetricsFile(tmp_path, 2, Display())
    assert (tmp_path / "metrics_cut.jsonl").read_text().splitlines() == [*cut, rows[2]]


ENGINE = "\x1b[36m(vLLMHttpServer pid=12)\x1b[0m (EngineCore pid=13) ERROR 11-22 20:02:00 [core.py:744] "
LOG = [
    "\x1b[36m(vLLMHttpServer pid=12)\x1b[0m INFO 11-22 20:02:00 [x.py:1] loading",
    "UserWarning: torchtitan engine is not available: ModuleNotFoundError(\"No module named 'torchtitan'\")",
    ENGINE + "Traceback (most recent call last):",
    ENGINE + "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found",
    "ray.exceptions.RayTaskError(IndexError): \x1b[36mray::TaskRunnerV1.run()\x1b[39m (pid=1, ip=127.0.0.1)",
    '    raise ValueError("Received an empty list as keys")',
    "ValueError: Received an empty list as keys",
]


def test_closing_words_name_the_first_error_and_the_last(tmp_path):
    log = tmp_path / "run.log"
    before = "OSError: of the start before\n"
    log.write_text(before + "\n".join(LOG) + "\n")
    first, last = error_lines(log, since=len(before))
    assert first.startswith("first error, line 5: torch._inductor.exc.InductorError: InvalidCxxCompiler")
    assert last == "last error: ValueError: Received an empty list as keys"
    log.write_text("no error\n")
    assert error_lines(log) == [] == error_lines(tmp_path / "none.log")


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    with run_folder.held(tmp_path), pytest.raises(ValueError, match="is training now"), run_folder.held(tmp_path):
        pass
    with run_folder.held(tmp_path):
        pass
