"""The settings: one set of defaults, and every bad value refused with its full key."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from configured import part
from omegaconf import OmegaConf, open_dict

from recipe.r3.config import gone, r3_config, settings_table
from recipe.r3.config.r3_config import HistoryConfig, R3Config, ReflectionConfig, ReplayConfig, describe, load_r3_config
from recipe.r3.config.r3_rules import validate_r3_config
from verl.utils.config import omega_conf_to_dataclass

ROOT = Path(r3_config.__file__).parents[3]
"""The folder that `recipe` lies in."""


def settings() -> dict[str, set[str]]:
    """The names of the settings under algorithm.r3, by group; those of no group under ""."""
    groups = ("history", "replay", "reflection", "ranking")
    found = {name: own_fields(type(getattr(R3Config(), name))) - {"_target_"} for name in groups}
    return {"": own_fields(R3Config) - {"_target_", *groups}, **found}


def own_fields(cls: type) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


# one set of defaults


def test_the_yaml_holds_the_defaults_of_the_dataclasses(shipped):
    loaded, defaults = dataclasses.asdict(load_r3_config(shipped)), dataclasses.asdict(R3Config())
    path = loaded["history"].pop("path")
    assert path == f"{shipped.trainer.default_local_dir}/{defaults['history'].pop('path')}"
    for part_ in (loaded, *(value for value in loaded.values() if isinstance(value, dict))):
        part_.pop("_target_")
    for part_ in (defaults, *(value for value in defaults.values() if isinstance(value, dict))):
        part_.pop("_target_")
    assert loaded == defaults
    assert loaded["reflection"]["template"] == ReflectionConfig().template


def test_the_yaml_lists_every_setting_so_that_each_can_be_overridden_by_name(shipped):
    r3 = shipped.algorithm.r3
    assert set(r3) == own_fields(R3Config)
    for name in ("history", "replay", "reflection", "ranking"):
        assert set(r3[name]) == own_fields(type(getattr(R3Config(), name)))


def test_every_target_of_the_yaml_is_the_class_it_names(shipped):
    built = omega_conf_to_dataclass(shipped.algorithm.r3)
    assert type(built) is R3Config
    for name in ("history", "replay", "reflection", "ranking"):
        assert type(getattr(built, name)) is type(getattr(R3Config(), name))


def test_the_shipped_configuration_is_valid(shipped):
    assert validate_r3_config(shipped) == load_r3_config(shipped)


def test_the_order_of_the_problems_is_seeded(shipped):
    """verl's own default draws another order at every start, and a resumed run would see other batches."""
    assert shipped.data.seed == 0


def test_the_lines_printed_at_the_start_name_the_correction_and_what_is_off(with_settings):
    replay, reflection, ranking = describe(load_r3_config(with_settings({"algorithm.r3.reflection.enable": False})))
    assert "k=1 right answers, their old log-probs: the current policy's, as for fresh ones" in replay
    assert reflection == "reflection off" and "ranking of truncated rows" in ranking
    tapered = describe(load_r3_config(with_settings({"algorithm.r3.replay.outcome": "both"})))
    assert (
        "k=1 answers" in tapered[0] and "wrong ones weigh less once unlikely" in tapered[0] and len(tapered[0]) <= 120
    )
    assert "wrong ones" not in replay


# values out of range


@pytest.mark.parametrize(
    "key, value, rule",
    [
        ("history.path", "", "be a file path"),
        ("history.path", 5, "be a file path"),
        ("history.max_per_outcome", 0, "be at least 1"),
        ("history.max_per_outcome", 1.5, "be at least 1"),
        ("history.max_per_outcome", True, "be at least 1"),
        ("replay.k", 0, "be at least 1 (replay.enable=False turns replay off)"),
        ("replay.k", 1.5, "be at least 1 (replay.enable=False turns replay off)"),
        ("replay.alpha", 0, "be > 0"),
        ("replay.alpha", "1", "be > 0"),
        ("replay.alpha", float("nan"), "be > 0"),
        ("replay.alpha", float("inf"), "be > 0"),
        ("history.max_gib", 0, "be > 0"),
        ("replay.max_age", 0, "be at least 1 or null"),
        ("reflection.rounds", 0, "be at least 1 or null"),
        ("replay.max_age", 1.5, "be at least 1 or null"),
        ("replay.correction", None, "be one of ('current', 'tapered')"),
        ("replay.correction", "behavior", "be one of ('current', 'tapered')"),
        ("reflection.threshold", 0, "be in (0, 1]"),
        ("reflection.threshold", 1.1, "be in (0, 1]"),
        ("reflection.threshold", True, "be in (0, 1]"),
        ("reflection.min_attempts", 0, "be at least 1"),
        ("reflection.max_fraction", 0.0, "be in (0, 1]"),
        ("reflection.max_fraction", 2, "be in (0, 1]"),
        ("reflection.template", "{question}", "hold {attempt} exactly once"),
        ("reflection.template", "{attempt}", "hold {question} exactly once"),
        ("reflection.template", "{question} {attempt} {attempt}", "hold {attempt} exactly once"),
        ("reflection.template", None, "hold {question} exactly once"),
        ("reflection.template_cut_off", "{question}", "hold {attempt} exactly once"),
        ("replay.reflected_unless", "(", "be a regular expression or null"),
        ("ranking.top_ratio", 0, "be in (0, 1]"),
        ("ranking.top_ratio", 1.01, "be in (0, 1]"),
        ("ranking.max_reward", 0, "be in (0, 1), below the 1 a correct answer earns"),
        ("ranking.max_reward", 1, "be in (0, 1), below the 1 a correct answer earns"),
        ("stall_timeout_s", 0, "be > 0"),
        ("stall_timeout_s", float("inf"), "be > 0"),
        ("stall_timeout_s", None, "be > 0"),
        ("replay.enable", "yes", "be true or false"),
        ("reflection.count_reflected_attempts", 1, "be true or false"),
        ("ranking", None, "be a group of settings"),
    ],
)
def test_a_bad_value_is_refused_with_its_full_key_and_the_rule(with_settings, key, value, rule):
    message = f"algorithm.r3.{key} must {rule}, got {value!r}; leave out algorithm.r3.{key}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        load_r3_config(with_settings({f"algorithm.r3.{key}": value}))


@pytest.mark.parametrize(
    "key, value",
    [
        ("history.max_per_outcome", 1),
        ("replay.k", 1),
        ("replay.alpha", 1e-3),
        ("replay.alpha", 2),
        ("replay.max_age", 1),
        ("replay.max_age", None),
        ("reflection.threshold", 1),
        ("reflection.min_attempts", 1),
        ("reflection.max_fraction", 1.0),
        ("reflection.template", "{attempt}{question}{other}"),
        ("ranking.top_ratio", 1),
        ("ranking.max_reward", 0.999),
        ("stall_timeout_s", 0.1),
    ],
)
def test_the_ends_of_a_range_are_accepted(with_settings, key, value):
    r3 = load_r3_config(with_settings({f"algorithm.r3.{key}": value}))
    *group, name = key.split(".")
    assert getattr(getattr(r3, group[0]) if group else r3, name) == value


@pytest.mark.parametrize(
    "key, cls", [("replays", R3Config), ("history.size", HistoryConfig), ("replay.K", ReplayConfig)]
)
def test_an_unknown_key_is_refused_with_the_known_ones(with_settings, key, cls):
    known = ", ".join(field.name for field in dataclasses.fields(cls) if field.name != "_target_")
    message = f"algorithm.r3.{key} is not a setting; known settings: {known}; leave out algorithm.r3.{key}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        load_r3_config(with_settings({f"algorithm.r3.{key}": 1}))


@pytest.mark.parametrize(
    "text",
    [
        "The earlier attempt added 3 twice.",
        "In the original attempt, I got 76.",
        "Here's a revised attempt at solving the problem.",
        "Here is a corrected answer: 45.",
        "The incorrect step was to add 58 first.",
        "The student's solution stops at 12.",
        "54 + 33 = 47. I made an error.",
        "To avoid such mistakes, I solved it again.",
        "<attempt> 12 </attempt>",
    ],
)
def test_an_answer_that_speaks_of_the_attempt_is_known_by_its_words(text):
    assert ReplayConfig().speaks_of_attempt(text)


@pytest.mark.parametrize(
    "text",
    [
        "54 + 33 = 87",
        "We attempt to factor the polynomial.",
        "Step 1: the original price is 12. The answer is 4.",
        "Suppose the statement is wrong. Then 3 divides 7.",
        "The error of the estimate is at most 0.5.",
    ],
)
def test_a_solution_that_shows_no_attempt_speaks_of_none(text):
    assert not ReplayConfig().speaks_of_attempt(text)


def test_a_configuration_without_r3_names_the_file_to_start_from(shipped):
    config = part(shipped)
    with open_dict(config):
        del config.algorithm["r3"]
    with pytest.raises(ValueError, match="algorithm.r3 is missing: add recipe/r3/config/r3.yaml"):
        load_r3_config(config)


@pytest.mark.parametrize("name", [*gone.MOVED, *gone.GONE])
def test_a_key_that_is_gone_is_told_with_what_there_is_instead(with_settings, name):
    key = f"algorithm.r3.{name}"
    config = with_settings({key: 1})
    with pytest.raises(ValueError, match=rf"^{re.escape(key)} is gone since \d+\.\d+\.\d+: \w"):
        load_r3_config(config)
    instead = gone.told(key)
    for named in re.findall(r"set ((?:data|reward|algorithm)\.[\w.]+)", instead):
        assert OmegaConf.select(config, named, default="?") != "?", f"{named}, the way out, is no setting"


def test_no_setting_is_gone_and_there_at_once():
    keys = {name if key == "" else f"{key}.{name}" for key, names in settings().items() for name in names}
    assert not keys & {*gone.MOVED, *gone.GONE}
    assert len(keys) <= 28


# what is written from the dataclasses


def test_yaml_and_readme_are_as_the_command_writes_them():
    for path, text in settings_table.written().items():
        assert path.read_text() == text, f"{path.name} is not up to date: run {settings_table.COMMAND}"


def test_what_is_gone_can_be_told_without_importing_verl():
    """`r3` tells it while it composes, before anything heavy is loaded."""
    code = "import sys; from recipe.r3.config import gone; assert not {'verl', 'torch'} & set(sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


# the command


@pytest.mark.slow
def test_the_command_tells_a_bad_setting_before_ray_starts(tmp_path):
    command = [sys.executable, "-m", "recipe.r3.main_r3", "algorithm.r3.replay.k=0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    message = "algorithm.r3.replay.k must be at least 1 (replay.enable=False turns replay off), got 0"
    output = run.stdout + run.stderr
    assert run.returncode == 2, output
    assert output.count(message) == 1 and f"- {message}; leave out algorithm.r3.replay.k\n" in run.stderr
    assert "Traceback" not in output and "Started a local Ray instance" not in output


@pytest.mark.slow
def test_the_recipes_run_script_composes():
    script = ROOT / "recipe" / "r3" / "run_r3_deepscaler.sh"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "DATA": "train.parquet", "VAL_DATA": "val.parquet"}
    done = subprocess.run(["bash", script, "--cfg", "job"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "adv_estimator: r3" in done.stdout and "train_files: train.parquet" in done.stdout
