"""Later starts of a run: what it keeps, what counts as a change, and which folders are runs."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf, open_dict

from r3_ext.record import folder as run_folder
from r3_ext.record.failure import error_lines
from r3_ext.record.metrics_file import MetricsFile
from r3_ext.record.summary import over_starts, read_cut, read_metrics, seconds_of
from r3_ext.run import changes, train
from r3_ext.run import command as launch
from r3_ext.run.start import FUNCTION, settle
from r3_ext.settings import choose
from r3_ext.settings.compose import compose_config, quoted

pytestmark = pytest.mark.slow

HOSTILE = (
    "a=b,c",
    "it's",
    "a\\'b",
    "x\\",
    "\\\\'",
    'é~#({["',
    "two words",
    " ",
    "a\\b",
    "null",
    "3",
    "[1]",
    "*",
    "!x",
    "'",
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (*changes.SOURCES, "R3_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def start_of(*argv: str, resume: bool = False):
    return settle(launch.parse(list(argv), resume), resume, lambda: "embedded")


def begin(*argv: str, ends: int | None = 0, data: Path | None = None):
    """A run folder as a start with these arguments leaves it, without the training."""
    start = start_of(*argv)
    files = [f"data.train_files={quoted(data)}"] if data else []
    places = train.run_overrides(start.folder, start.method, False)
    config = compose_config(start.compose(places + files))
    start.folder.mkdir(parents=True)
    start.record(-1, config, {}, None)
    OmegaConf.save(config, start.folder / "config.yaml", resolve=True)
    if ends is not None:
        run_folder.append(start.folder, "end", seconds=10.0, exit_code=ends)
    return start.folder


def compare(start, say=lambda text: None) -> changes.Changes:
    """What the command compares before it loads anything."""
    places = train.run_overrides(start.folder, start.method, False)
    return start.check(compose_config(start.compose(places + start.stored_paths())), False, say)


def test_quoted_values_reach_the_config_as_they_are():
    texts = ",".join(quoted(value) for value in HOSTILE)
    keys = ("data.prompt_key", "data.reward_fn_key", "trainer.project_name")
    alone = [f"{key}={quoted(value)}" for key, value in zip(keys, HOSTILE, strict=False)]
    config = compose_config(["+profile=embedded", "+method=r3", f"data.train_files=[{texts}]", *alone])
    assert tuple(config.data.train_files) == HOSTILE
    assert (config.data.prompt_key, config.data.reward_fn_key, config.trainer.project_name) == HOSTILE[:3]


@pytest.mark.parametrize("value", ["${oc.env:HOME}", "a\nb", "a\0b"])
def test_what_the_settings_cannot_hold_is_refused(value):
    with pytest.raises(ValueError, match="rename it"):
        quoted(value)


def test_a_reward_function_is_found_from_elsewhere_and_a_changed_one_is_another_run(tmp_path, monkeypatch):
    file = tmp_path / "it's mine.py"
    file.write_text("def compute_score(): pass")
    folder = begin("--run", "a", f"{FUNCTION}=it's mine.py".replace("it's mine.py", quoted("it's mine.py")))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    start = start_of(str(folder), resume=True)
    config = compose_config(start.compose(train.run_overrides(start.folder, start.method, False)))
    assert config.reward.custom_reward_function.path == str(file)
    assert start.check(config, True, lambda text: None) == {}
    file.write_text("def compute_score(): return 1")
    with pytest.raises(ValueError, match=f"started with other settings: content of {FUNCTION}"):
        start.check(config, True, lambda text: None)


def test_a_changed_function_of_a_module_is_another_run(tmp_path):
    module, settings = tmp_path / "pool_module.py", (f"{FUNCTION}=pkg://pool_module", f"{FUNCTION}=file://file.py")
    (tmp_path / "file.py").touch()
    for run, setting in zip("ab", settings, strict=True):
        module.write_text("def compute_score(): pass")
        start = start_of(str(begin("--run", run, setting)), resume=True)
        config = compose_config(start.compose(train.run_overrides(start.folder, start.method, False)))
        assert start.check(config, True, lambda text: None) == {}
        changed = module if run == "a" else tmp_path / "file.py"
        changed.write_text("def compute_score(): return 1")
        with pytest.raises(ValueError, match=f"started with other settings: content of {FUNCTION}"):
            start.check(config, True, lambda text: None)
    assert config.reward.custom_reward_function.path == str(tmp_path / "file.py")


def test_a_run_that_goes_on_keeps_method_profile_options_and_overrides():
    begin("--run", "a", "--method", "grpo", "--until-tokens", "500", "--profile", "embedded", "trainer.total_epochs=3")
    start = start_of("a", "data.seed=3", resume=True)
    assert (start.method, start.profile, start.options["until_tokens"]) == ("grpo", "embedded", 500)
    assert start.overrides == ["trainer.total_epochs=3", "data.seed=3"]
    assert start_of("--run", "a").overrides == ["trainer.total_epochs=3"], "by name, as by resume"


@pytest.mark.parametrize(
    ("method", "trainer"),
    [("r3", "r3_separate_async"), ("r3_paper", "r3_separate_async"), ("dapo", "baseline_separate_async")],
)
def test_a_run_keeps_its_mode_with_what_its_profile_needs_for_it(method, trainer):
    folder = begin("--method", method, "--mode", "separate_async", "--run", "a")
    assert folder.parent.name == f"{method}_separate_async_embedded"
    config = compose_config(start_of("--run", "a").compose([]))
    assert config.trainer.v1.trainer_mode == trainer
    engine = config.actor_rollout_ref.rollout.checkpoint_engine
    assert (engine.backend, config.ray_kwargs.ray_init.num_gpus) == ("ray", 2)
    for given in (
        ["--mode", "colocate_async"],
        ["--mode", "sync", "--change"],
        ["trainer.v1.trainer_mode=r3", "--change"],
    ):
        with pytest.raises(ValueError, match="trains in the mode separate_async, and what is in flight"):
            compare(start_of("--run", "a", *given))


def test_a_run_from_before_there_were_modes_is_synchronous():
    folder = begin("--run", "a")
    file = folder / "starts.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    del lines[0]["arguments"]["options"]["mode"]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    start = start_of("--run", "a")
    assert start.mode == "sync" and compare(start) == {}


def test_nothing_given_changes_nothing():
    begin("--run", "a", "algorithm.r3.replay.k=4")
    assert compare(start_of("a", resume=True)) == {}


def test_a_run_from_before_settings_were_renamed_goes_on_unless_it_used_what_is_gone():
    folder = begin("--run", "a", "data.seed=3", "reward.reward_kwargs.correct_from=2.0")
    file = folder / "starts.jsonl"
    file.write_text(file.read_text().replace('"data.seed=3"', '"algorithm.r3.seed=3", "algorithm.r3.rows_folder=/a"'))
    old = OmegaConf.load(folder / "config.yaml")
    with open_dict(old):
        del old.reward.reward_kwargs["correct_from"]
        old.algorithm.r3.update({"seed": 3, "correct_from": 2.0, "warn_after_steps": 5, "rows_folder": "/a"})
        old.algorithm.r3.replay.epsilon = 1e-6
        old.algorithm.r3.ranking.scope = "truncated"
    OmegaConf.save(old, folder / "config.yaml")
    start = start_of("a", resume=True)
    assert "data.seed=3" in start.overrides and compare(start) == {}
    with open_dict(old):
        old.algorithm.r3.ranking.scope = "failed"
    OmegaConf.save(old, folder / "config.yaml")
    with pytest.raises(ValueError, match="other settings: .*algorithm.r3.ranking.scope"):
        compare(start_of("a", resume=True))


def test_a_run_keeps_its_attention_whatever_is_installed_later(monkeypatch):
    def attention(start):
        return compose_config(start.compose([])).actor_rollout_ref.model.override_config.attn_implementation

    versions = {}
    monkeypatch.setattr(choose, "installed_version", versions.get)
    begin("--run", "a", "--profile", "gpu_1x80gb")
    versions["flash-attn"] = "2.8.3"
    assert attention(start_of("a", resume=True)) == "sdpa"
    assert compare(start_of("a", resume=True)) == {}
    begin("--run", "b", "--profile", "gpu_1x80gb")
    versions.clear()
    assert attention(start_of("b", resume=True)) == "flash_attention_2"
    versions["flash-attn"] = "2.8.3"
    assert attention(start_of("--run", "c", "--profile", "gpu_1x80gb", f"{choose.ATTENTION}=sdpa")) == "sdpa"
    assert attention(start_of("--run", "d")) == "sdpa", "without a GPU"


@pytest.mark.parametrize(
    "settings, steps", [((), 6), (("data.train_max_samples=9",), 4), (("data.train_max_samples=99",), 6)]
)
def test_the_progress_bar_counts_the_steps_that_verl_takes(tmp_path, settings, steps):
    """13 problems, 4 a step, two epochs."""
    file = tmp_path / "train.parquet"
    pq.write_table(pa.table({"prompt": ["p"] * 13}), file)
    given = (f"data.train_files={file}", "data.train_batch_size=4", "trainer.total_epochs=2", *settings)
    assert train.total_steps(compose_config(["+profile=embedded", "+method=r3", *given])) == steps


def test_with_change_it_goes_on_as_another_run_and_says_so():
    begin("--run", "a", "algorithm.r3.replay.k=4")
    said = []
    found = compare(start_of("a", "--change", "algorithm.r3.replay.k=1", resume=True), said.append)
    assert found == {"algorithm.r3.replay.k": (4, 1)}
    assert "algorithm.r3.replay.k: 4 -> 1   (another run: needs --change)" in said[0]


def test_a_free_setting_is_taken_and_shown():
    begin("--run", "a")
    said = []
    found = compare(start_of("a", "trainer.total_epochs=77", "trainer.save_freq=7", resume=True), said.append)
    assert sorted(found) == ["trainer.save_freq", "trainer.total_epochs"]
    assert "trainer.total_epochs: " in said[0] and "-> 77" in said[0] and "needs --change" not in said[0]


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (["algorithm.r3.replay.k=1"], "algorithm.r3.replay.k"),
        (["--method", "grpo"], "--method"),
        (["data.train_batch_size=4"], "data.train_batch_size"),
        (["data.seed=9"], "data.seed"),
        (["actor_rollout_ref.model.path=other"], "actor_rollout_ref.model.path"),
        (["--profile", "gpu_1x24gb"], "--profile"),
        (["--world", "seed=1"], "--world"),
    ],
)
def test_what_makes_it_another_run_needs_change(given, key):
    begin("--run", "a", "algorithm.r3.replay.k=4")
    with pytest.raises(ValueError, match=rf"other settings: .*{key}.*give --change"):
        compare(start_of("a", *given, resume=True))


def test_the_first_default_of_another_experiment_is_not_taken():
    """`--method grpo --run a` and then `--run a`: the run that there is, not a new one of R^3."""
    folder = begin("--run", "a", "--method", "grpo")
    assert start_of("--run", "a").folder == folder
    begin("--run", "a", "--experiment", "other")
    with pytest.raises(ValueError, match="grpo_embedded/a, other/a"):
        start_of("--run", "a")
    assert start_of("grpo_embedded/a", resume=True).folder == folder
    assert start_of(str(folder), resume=True).folder == folder


def test_a_setting_that_was_added_can_be_changed():
    begin("--run", "a", "+ray_kwargs.ray_init.x=1")
    start = start_of("a", "ray_kwargs.ray_init.x=2", resume=True)
    assert start.overrides == ["++ray_kwargs.ray_init.x=2"]
    assert compare(start) == {"ray_kwargs.ray_init.x": (1, 2)}


def test_the_checkpoint_to_go_on_from_is_named_for_one_start_only():
    folder = begin("--run", "a")
    given = ["trainer.resume_mode=resume_path", "trainer.resume_from_path=x/global_step_3"]
    start = start_of("a", *given, resume=True)
    assert compare(start) == {} and start.has_more_to_do({})
    start.record(3, compose_config(start.compose([])), {}, None)
    run_folder.append(folder, "end", seconds=1.0, exit_code=0)
    assert start_of("a", resume=True).overrides == []


def test_data_are_kept_by_their_contents(tmp_path, monkeypatch):
    first, moved, other = (tmp_path / name for name in ("a.parquet", "b.parquet", "c.parquet"))
    first.write_bytes(b"rows"), moved.write_bytes(b"rows"), other.write_bytes(b"others")
    monkeypatch.setenv("DATA", "a.parquet")
    begin("--run", "a", data=first)
    monkeypatch.delenv("DATA")
    start = start_of("a", resume=True)
    assert os.environ["DATA"] == str(first), "a later start in another folder, without DATA, trains on the same file"
    settings = train.run_overrides(start.folder, start.method, False)

    def differs(file: Path) -> changes.Changes:
        config = compose_config(start_of("a", resume=True).compose([*settings, f"data.train_files={quoted(file)}"]))
        return start_of("a", "--change", resume=True).check(config, True, lambda text: None)

    assert differs(first) == differs(moved) == {}
    assert list(differs(other)) == ["data.train_files"]
    first.write_bytes(b"other rows at the same place")
    assert list(differs(first)) == ["content of data.train_files"]


def test_the_model_is_compared_by_its_files(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m/weights").write_bytes(b"a" * 3_000_000)
    begin("--run", "a", "actor_rollout_ref.model.path=m")
    start = start_of("a", "--change", resume=True)
    config = compose_config(start.compose(train.run_overrides(start.folder, start.method, False)))
    assert start.check(config, True, lambda text: None) == {}
    (tmp_path / "m/weights").write_bytes(b"a" * 2_999_999 + b"b")
    assert list(start.check(config, True, lambda text: None)) == ["content of actor_rollout_ref.model.path"]


def test_what_is_named_anew_takes_the_place_of_what_was_kept_either_way(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    monkeypatch.setenv("DATA", "a")
    begin("--run", "by_variable")
    monkeypatch.delenv("DATA")
    start = start_of("by_variable", "data.train_files=b", resume=True)
    assert (start.sources, start.overrides) == ({}, ["data.train_files=b"])
    begin("--run", "by_override", "data.train_files=a")
    monkeypatch.setenv("DATA", "b")
    start = start_of("by_override", resume=True)
    assert (start.sources, start.overrides) == ({"DATA": str(tmp_path / "b")}, [])


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


def test_an_added_setting_can_be_taken_back():
    begin("--run", "a", "+ray_kwargs.ray_init.x=1")
    assert compare(start_of("a", "~ray_kwargs.ray_init.x", resume=True)) == {"ray_kwargs.ray_init.x": (1, None)}


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
