"""The settings: one set of defaults, every bad value refused with its full key, every bad combination too."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict

from recipe.r3 import r3_config
from recipe.r3.history.store import SELECTIONS
from recipe.r3.r3_config import (
    HistoryConfig,
    R3Config,
    ReflectionConfig,
    ReplayConfig,
    describe,
    load_r3_config,
    validate_r3_config,
)
from verl.utils.config import omega_conf_to_dataclass

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shipped() -> DictConfig:
    """recipe/r3/config/r3.yaml over verl's ppo_trainer, composed as the command does it."""
    with initialize_config_dir(str(Path(r3_config.__file__).parent / "config"), version_base=None):
        return compose("r3_trainer")


def part(config: DictConfig) -> DictConfig:
    """A copy of the sections that the checks read; copying all of verl's configuration takes most of a second."""
    names = "algorithm", "actor_rollout_ref", "critic", "data", "ray_kwargs", "reward", "trainer"
    return OmegaConf.masked_copy(config, [*names, *r3_config.LEGACY])


@pytest.fixture
def with_settings(shipped):
    """The shipped configuration with some keys set."""

    def build(settings: dict) -> DictConfig:
        config = part(shipped)
        with open_dict(config):
            for key, value in settings.items():
                OmegaConf.update(config, key, value, force_add=True)
        return config

    return build


def own_fields(cls: type) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


# one set of defaults


def test_the_yaml_holds_the_defaults_of_the_dataclasses(shipped):
    loaded, defaults = dataclasses.asdict(load_r3_config(shipped)), dataclasses.asdict(R3Config())
    path = loaded["history"].pop("path")
    assert path == f"{shipped.trainer.default_local_dir}/{defaults['history'].pop('path')}"
    for settings in (loaded, *(value for value in loaded.values() if isinstance(value, dict))):
        settings.pop("_target_")
    for settings in (defaults, *(value for value in defaults.values() if isinstance(value, dict))):
        settings.pop("_target_")
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
    assert shipped.data.seed == shipped.algorithm.r3.seed == 0


def test_the_lines_printed_at_the_start_name_the_correction_and_what_is_off(with_settings):
    replay, reflection, ranking = describe(load_r3_config(with_settings({"algorithm.r3.reflection.enable": False})))
    assert "k=1 uniform right answers, their old log-probs: the current policy's" in replay
    assert reflection == "reflection off" and "ranking of truncated rows" in ranking
    lines = describe(load_r3_config(with_settings(BEHAVIOR)))
    tapered = describe(load_r3_config(with_settings({"algorithm.r3.replay.outcome": "both"})))
    assert (
        "uniform answers" in tapered[0]
        and "wrong ones weigh less once unlikely" in tapered[0]
        and len(tapered[0]) <= 120
    )
    # Stored answers of either outcome take the place of aborted ones.
    [late, *_] = describe(load_r3_config(with_settings({"algorithm.r3.rollout_deadline_s": 5.0})))
    assert "wrong ones weigh less once unlikely" in late and "wrong ones" not in replay
    assert "truncated weights" in lines[0] and max(map(len, lines)) <= 120


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
        ("replay.epsilon", 0.0, "be > 0"),
        ("replay.epsilon", -1e-6, "be > 0"),
        ("history.max_gib", 0, "be > 0"),
        ("history.restore", True, "be one of ('all', 'statistics', 'none')"),
        ("replay.selection", "best", f"be one of {SELECTIONS}"),
        ("replay.max_age", 0, "be at least 1 or null"),
        ("reflection.rounds", 0, "be at least 1 or null"),
        ("replay.max_replays", 1.5, "be at least 1 or null"),
        ("rollout_deadline_s", 0, "be > 0 or null"),
        ("replay.correction", None, "be one of ('current', 'tapered', 'behavior')"),
        ("reflection.threshold", 0, "be in (0, 1]"),
        ("reflection.threshold", 1.1, "be in (0, 1]"),
        ("reflection.threshold", True, "be in (0, 1]"),
        ("reflection.min_attempts", 0, "be at least 1"),
        ("reflection.max_fraction", 0.0, "be in (0, 1]"),
        ("reflection.max_fraction", 2, "be in (0, 1]"),
        ("reflection.max_prompt_tokens", 0, "be at least 1 or null"),
        ("reflection.max_prompt_tokens", "all", "be at least 1 or null"),
        ("reflection.cut", "tail", "be one of ('middle', 'head')"),
        ("reflection.template", "{question}", "hold {attempt} exactly once"),
        ("reflection.template", "{attempt}", "hold {question} exactly once"),
        ("reflection.template", "{question} {attempt} {attempt}", "hold {attempt} exactly once"),
        ("reflection.template", None, "hold {question} exactly once"),
        ("reflection.template_cut_off", "{question}", "hold {attempt} exactly once"),
        ("replay.reflected_unless", "(", "be a regular expression or null"),
        ("rows_folder", "", "be a folder or null"),
        ("ranking.top_ratio", 0, "be in (0, 1]"),
        ("ranking.top_ratio", 1.01, "be in (0, 1]"),
        ("ranking.max_reward", 0, "be in (0, 1), below the 1 a correct answer earns"),
        ("ranking.max_reward", 1, "be in (0, 1), below the 1 a correct answer earns"),
        ("ranking.scope", "all", "be one of ('truncated', 'failed')"),
        ("seed", -1, "be a whole number >= 0"),
        ("seed", 0.5, "be a whole number >= 0"),
        ("warn_after_steps", -1, "be a whole number >= 0"),
        ("stall_timeout_s", 0, "be > 0"),
        ("stall_timeout_s", float("inf"), "be > 0"),
        ("stall_timeout_s", None, "be > 0"),
        ("weight_sync_timeout_s", 0, "be > 0"),
        ("replay.enable", "yes", "be true or false"),
        ("reflection.count_reflected_attempts", 1, "be true or false"),
        ("ranking", None, "be a group of settings"),
    ],
)
def test_a_bad_value_is_refused_with_its_full_key_and_the_rule(with_settings, key, value, rule):
    message = f"algorithm.r3.{key} must {rule}, got {value!r}"
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
        ("replay.max_replays", None),
        ("rollout_deadline_s", 0.5),
        ("reflection.threshold", 1),
        ("reflection.min_attempts", 1),
        ("reflection.max_fraction", 1.0),
        ("reflection.max_prompt_tokens", 1),
        ("reflection.template", "{attempt}{question}{other}"),
        ("ranking.top_ratio", 1),
        ("ranking.max_reward", 0.999),
        ("warn_after_steps", 0),
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
    message = f"algorithm.r3.{key} is not a setting; known settings: {known}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        load_r3_config(with_settings({f"algorithm.r3.{key}": 1}))


def test_a_configuration_without_r3_names_the_file_to_start_from(shipped):
    config = part(shipped)
    with open_dict(config):
        del config.algorithm["r3"]
    with pytest.raises(ValueError, match="algorithm.r3 is missing: add recipe/r3/config/r3.yaml"):
        load_r3_config(config)


@pytest.mark.parametrize("own, budget", [(None, 512), (100, 100)])
def test_the_reflection_budget_is_the_prompt_length_unless_set(own, budget):
    assert ReflectionConfig(max_prompt_tokens=own).budget(max_prompt_length=512) == budget


# combinations: verl's defaults are max_prompt_length = max_response_length = 512, train_batch_size 1024

SDPA = {"actor_rollout_ref.model.override_config.attn_implementation": "sdpa"}
PARALLEL = "actor_rollout_ref.actor.ulysses_sequence_parallel_size"
THRESHOLD = "algorithm.rollout_correction.rollout_is_threshold"
BEHAVIOR = {"algorithm.r3.replay.correction": "behavior", "algorithm.rollout_correction.rollout_is": "token"}
COMBINATIONS = [
    ({"algorithm.adv_estimator": "grpo"}, "algorithm.adv_estimator: must be r3 .* got 'grpo'"),
    ({"reward.reward_manager.name": "dapo"}, "reward.reward_manager.name: dapo .*manager.source=register"),
    ({"critic.enable": True}, "critic.enable: .*set critic.enable=False"),
    (
        {"algorithm.rollout_correction.bypass_mode": True},
        "algorithm.r3.ranking.enable: .*algorithm.rollout_correction.bypass_mode=True skips; turn one of the two off",
    ),
    (
        {"algorithm.rollout_correction.bypass_mode": True, "algorithm.r3.ranking.enable": False},
        "algorithm.r3.replay.enable: algorithm.rollout_correction.bypass_mode=True takes the stored log-probs",
    ),
    (
        {"trainer.v1.sampler.sync_refill_failed_groups": True},
        "trainer.v1.sampler.sync_refill_failed_groups: True has no effect",
    ),
    ({"distillation.enabled": True}, "distillation.enabled: a replayed answer has no log-probs of a teacher"),
    ({"reward.sandbox_fusion.url": "u"}, "reward.sandbox_fusion.url: u would not be asked"),
    ({"algorithm.filter_groups.enable": True}, r"algorithm.filter_groups.enable: .*set it to False, or .*dapo"),
    (
        {"algorithm.filter_groups.enable": True, "algorithm.r3.replay.enable": False},
        "algorithm.filter_groups.enable: verl filters nothing with a custom sampler",
    ),
    ({"trainer.v1.trainer_mode": "colocate_async"}, "trainer.v1.trainer_mode: must be r3, r3_colo.*got 'colocate"),
    (
        {"trainer.v1.trainer_mode": "r3_separate_async", "actor_rollout_ref.actor.fsdp_config.offload_policy": True},
        "actor_rollout_ref.actor.fsdp_config: offload_policy=True, .*set both to False",
    ),
    (
        {"trainer.v1.trainer_mode": "r3_colocate_async", "algorithm.r3.rollout_deadline_s": 5.0},
        "algorithm.r3.rollout_deadline_s: 5.0 s with trainer.v1.trainer_mode=r3_colocate_async: .*set it to null",
    ),
    ({"reward.reward_model.enable": True}, "reward.reward_model.enable: .*set it to False"),
    (
        {"ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES": "mine,recipe.r3.r3_trainer"},
        "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES: 'mine,recipe.r3.r3_trainer' lacks",
    ),
    ({"actor_rollout_ref.rollout.n": 1}, "actor_rollout_ref.rollout.n: 1 leaves nothing to compare"),
    (
        {"actor_rollout_ref.rollout.n": 3},
        "algorithm.r3.reflection.min_attempts: 4 attempts are never there in algorithm.r3.reflection.rounds=1 steps of "
        "actor_rollout_ref.rollout.n=3 answers",
    ),
    ({"actor_rollout_ref.rollout.multi_turn.enable": True}, "actor_rollout_ref.rollout.multi_turn.enable: "),
    (
        {"actor_rollout_ref.rollout.agent.default_agent_loop": "tool_agent"},
        "actor_rollout_ref.rollout.agent.default_agent_loop: .*set it to single_turn_agent",
    ),
    ({"actor_rollout_ref.actor.strategy": "megatron"}, "actor_rollout_ref.actor.strategy: R.3 trains with fsdp or"),
    ({"actor_rollout_ref.actor.shuffle": True}, "actor_rollout_ref.actor.shuffle: .*set it to False"),
    (
        {"actor_rollout_ref.rollout.prompt_length": 511},
        "algorithm.r3.reflection.max_prompt_tokens: 512 exceeds actor_rollout_ref.rollout.prompt_length=511",
    ),
    (
        {"algorithm.r3.replay.correction": "behavior"},
        "algorithm.r3.replay.correction: .*set algorithm.rollout_correction.rollout_is=token",
    ),
    (
        {"algorithm.r3.rollout_deadline_s": 5.0, "actor_rollout_ref.rollout.calculate_log_probs": False},
        "algorithm.r3.replay.correction: tapered .*set actor_rollout_ref.rollout.calculate_log_probs=True",
    ),
    (
        {
            "algorithm.r3.replay.outcome": "wrong",
            "actor_rollout_ref.rollout.calculate_log_probs": False,
        },
        "algorithm.r3.replay.correction: tapered .*set actor_rollout_ref.rollout.calculate_log_probs=True",
    ),
    (
        {**BEHAVIOR, "actor_rollout_ref.rollout.calculate_log_probs": False},
        "algorithm.r3.replay.correction: .*set actor_rollout_ref.rollout.calculate_log_probs=True",
    ),
    (
        {
            "algorithm.r3.replay.selection": "lowest_entropy",
            "actor_rollout_ref.rollout.calculate_log_probs": False,
        },
        "algorithm.r3.replay.selection: .*set actor_rollout_ref.rollout.calculate_log_probs=True",
    ),
    (
        {"algorithm.rollout_correction.rollout_is": "token", "actor_rollout_ref.rollout.calculate_log_probs": False},
        "algorithm.rollout_correction.rollout_is: token, .*set actor_rollout_ref.rollout.calculate_log_probs=True",
    ),
    (
        {"algorithm.rollout_correction.rollout_rs": "token_k1", "actor_rollout_ref.rollout.calculate_log_probs": False},
        "algorithm.rollout_correction.rollout_is: None, or rollout_rs=token_k1, needs .*, or both to null",
    ),
    (
        {**BEHAVIOR, "algorithm.rollout_correction.rollout_rs": "seq_mean_k1"},
        "algorithm.rollout_correction.rollout_rs: seq_mean_k1 with .*Set it to null, or the correction to current",
    ),
    (
        {"actor_rollout_ref.actor.policy_loss.loss_mode": "bypass_mode"},
        "actor_rollout_ref.actor.policy_loss.loss_mode: bypass_mode takes old .*Use vanilla",
    ),
    (
        {**BEHAVIOR, THRESHOLD: "0.5_5.0"},
        f"{THRESHOLD}: 0.5_5.0 with .*set the upper bound alone, .*or the correct",
    ),
    (
        {"custom_reward_function.path": "mine.py"},
        "custom_reward_function.path: 'mine.py' has no effect, .*: set reward.custom_reward_function.path",
    ),
    ({"custom_reward_function.reward_kwargs.strict": False}, "custom_reward_function.reward_kwargs.strict: False has"),
    (
        {"reward_model.reward_manager": "dapo"},
        "reward_model.reward_manager: 'dapo' has no .*set reward.reward_manager, ",
    ),
    ({"reward_model.model.path": "judge"}, "reward_model.model.path: 'judge' has no effect"),
    (
        {"sandbox_fusion.url": "http://h"},
        "sandbox_fusion.url: 'http://h' has no effect, .*: set reward.sandbox_fusion.url",
    ),
    ({**SDPA, PARALLEL: 2}, f"{PARALLEL}: 2 with attn_implementation=sdpa: .*flash_attention_2, or 1"),
    (
        {**SDPA, "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": 4},
        f"{PARALLEL}: 4 with attn_implementation=sdpa",
    ),
    (
        {"algorithm.r3.reflection.max_prompt_tokens": 513},
        "algorithm.r3.reflection.max_prompt_tokens: 513 exceeds data.max_prompt_length=512",
    ),
    (
        {"actor_rollout_ref.rollout.max_model_len": 1023},
        "algorithm.r3.reflection.max_prompt_tokens: 512 prompt tokens plus data.max_response_length=512 exceed "
        "actor_rollout_ref.rollout.max_model_len=1023",
    ),
    (
        {"actor_rollout_ref.actor.ppo_mini_batch_size": 300},
        "actor_rollout_ref.actor.ppo_mini_batch_size: 300 must divide data.train_batch_size=1024",
    ),
    (
        {"actor_rollout_ref.actor.ppo_mini_batch_size": 0},
        "actor_rollout_ref.actor.ppo_mini_batch_size: 0 must divide data.train_batch_size=1024",
    ),
]


@pytest.mark.parametrize("settings, message", COMBINATIONS)
def test_a_combination_that_cannot_work_is_refused_with_the_keys_and_the_way_out(with_settings, settings, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        validate_r3_config(with_settings(settings))


OFF = {f"algorithm.r3.{name}.enable": False for name in ("replay", "reflection", "ranking")}


@pytest.mark.parametrize(
    "settings",
    [
        OFF,
        {**OFF, "algorithm.rollout_correction.bypass_mode": True, "algorithm.r3.reflection.enable": True},
        {**OFF, "actor_rollout_ref.actor.shuffle": True},
        {"actor_rollout_ref.rollout.n": 2, "algorithm.r3.reflection.rounds": 2},
        {"actor_rollout_ref.rollout.n": 2, "algorithm.r3.reflection.rounds": None},
        {"actor_rollout_ref.rollout.n": 2, "algorithm.r3.reflection.enable": False},
        {PARALLEL: 2},
        SDPA,
        {"algorithm.rollout_correction.rollout_rs": "seq_mean_k1"},
        {**BEHAVIOR, "algorithm.rollout_correction.rollout_rs": "seq_mean_k1", "algorithm.r3.replay.enable": False},
        {
            **{**OFF, "algorithm.rollout_correction.bypass_mode": True},
            "actor_rollout_ref.actor.policy_loss.loss_mode": "bypass_mode",
        },
        BEHAVIOR,
        {**BEHAVIOR, THRESHOLD: "5.0"},
        {**BEHAVIOR, **OFF, THRESHOLD: "0.5_5.0"},
        {"algorithm.rollout_correction.rollout_is": "token", THRESHOLD: "0.5_5.0"},
        {
            **{"reward.sandbox_fusion.url": "http://h", "reward.reward_manager.source": "register"},
            "reward.reward_manager.name": "naive",
        },
        {"algorithm.r3.replay.correction": "behavior", "algorithm.r3.replay.enable": False},
        {"algorithm.r3.reflection.max_prompt_tokens": 512, "actor_rollout_ref.rollout.max_model_len": 1024},
        {"algorithm.r3.reflection.max_prompt_tokens": 511, "actor_rollout_ref.rollout.max_model_len": 1023},
        {"actor_rollout_ref.rollout.max_model_len": 600, "algorithm.r3.reflection.enable": False},
        {"actor_rollout_ref.actor.ppo_mini_batch_size": 1024},
    ],
)
def test_the_ways_out_work(with_settings, settings):
    validate_r3_config(with_settings(settings))


# the command


@pytest.mark.slow
def test_the_command_ends_with_one_line_about_a_bad_setting_before_ray_starts(tmp_path):
    command = [sys.executable, "-m", "recipe.r3.main_r3", "algorithm.r3.replay.k=0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    message = "algorithm.r3.replay.k must be at least 1 (replay.enable=False turns replay off), got 0"
    output = run.stdout + run.stderr
    assert run.returncode == 2, output
    assert output.count(message) == 1 and f"error: {message}\n" in run.stderr
    assert "Traceback" not in output and "Started a local Ray instance" not in output


@pytest.mark.slow
def test_the_recipes_run_script_composes():
    script = Path(__file__).resolve().parents[2] / "recipe" / "r3" / "run_r3_deepscaler.sh"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "DATA": "train.parquet", "VAL_DATA": "val.parquet"}
    done = subprocess.run(["bash", script, "--cfg", "job"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "adv_estimator: r3" in done.stdout and "train_files: train.parquet" in done.stdout
