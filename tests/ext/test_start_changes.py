"""Later starts of a run: what it keeps, and what counts as a change."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3_ext.record import folder as run_folder
from r3_ext.run import changes, train
from r3_ext.run.start import FUNCTION
from r3_ext.settings import choose
from r3_ext.settings.compose import compose_config, quoted
from tests.ext.started import begin, compare, start_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("here")]

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
    assert (config.trainer.v1.trainer_mode, config.trainer.v1.separate_async.parameter_sync_step) == (trainer, 2)
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


def test_an_added_setting_can_be_taken_back():
    begin("--run", "a", "+ray_kwargs.ray_init.x=1")
    assert compare(start_of("a", "~ray_kwargs.ray_init.x", resume=True)) == {"ray_kwargs.ray_init.x": (1, None)}
