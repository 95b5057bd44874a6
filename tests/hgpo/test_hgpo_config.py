"""HGPO's settings: what is shipped, what is refused, and that the files say what the dataclasses have."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict

from recipe.common.checks import Refused
from recipe.common.reward.first_rows import check_first_rows
from recipe.common.reward.judge import MANAGER, judge_of
from recipe.common.reward.truths import OWN_MANAGER
from recipe.hgpo.config import hgpo_config, settings_table
from recipe.hgpo.config.hgpo_config import HGPOConfig, SessionConfig, describe, load_hgpo_config, load_session_config
from recipe.hgpo.config.hgpo_rules import broken_rules, rows_are_tasks, validate_hgpo_config

FOLDER = Path(hgpo_config.__file__).parent
RUNS = [
    "actor_rollout_ref.rollout.name=vllm",
    "data.train_batch_size=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
]


@pytest.fixture(scope="module")
def shipped() -> DictConfig:
    with initialize_config_dir(str(FOLDER), version_base=None):
        return compose("hgpo_trainer", RUNS)


@pytest.fixture
def with_settings(shipped):
    def build(settings: dict) -> DictConfig:
        config = shipped.copy()
        with open_dict(config):
            for key, value in settings.items():
                OmegaConf.update(config, key, value, force_add=True)
        return config

    return build


def set_in(settings) -> dict:
    return {name: value for name, value in asdict(settings).items() if name != "_target_"}


def test_what_is_shipped_is_valid_and_has_the_defaults_of_the_dataclasses(shipped):
    placed = f"{shipped.trainer.default_local_dir}/episodes.jsonl"
    assert set_in(validate_hgpo_config(shipped)) == set_in(HGPOConfig(episodes=placed))
    assert set_in(load_session_config(shipped)) == set_in(SessionConfig())


def test_yaml_and_readme_are_as_the_command_writes_them():
    for path, text in settings_table.written().items():
        assert path.read_text() == text, f"{path.name} is not up to date: run {settings_table.COMMAND}"


@pytest.mark.parametrize("name", [path.stem for path in sorted((FOLDER / "method").glob("*.yaml"))])
def test_every_method_is_valid(shipped, name):
    config = shipped.copy()
    with open_dict(config):
        config.merge_with(OmegaConf.load(FOLDER / "method" / f"{name}.yaml"))
    assert validate_hgpo_config(config).depth == (0 if name == "gigpo" else 2)
    assert load_session_config(config).tag == ("action" if name == "hgpo_release" else None)


OWN = "algorithm.hgpo"
ROLLOUT = "actor_rollout_ref.rollout"
SESSION = f"{ROLLOUT}.custom.session"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({f"{OWN}.depth": -1}, f"{OWN}.depth must be at least 0, got -1"),
        ({f"{OWN}.norm": "std"}, f"{OWN}.norm must be one of mean_std_norm, mean_norm, got 'std'"),
        ({f"{OWN}.weights": "x"}, f"{OWN}.weights must be one of paper, release, got 'x'"),
        ({f"{OWN}.std": "x"}, f"{OWN}.std must be one of population, sample, got 'x'"),
        ({f"{OWN}.penalise": "x"}, f"{OWN}.penalise must be one of none, format, inadmissible, both, got 'x'"),
        ({f"{OWN}.gamma": 0}, f"{OWN}.gamma must be in (0, 1], got 0"),
        ({f"{OWN}.alpha": -1}, f"{OWN}.alpha must be at least 0, got -1"),
        ({f"{OWN}.step_weight": 0}, f"{OWN}.step_weight must be above 0 where {OWN}.episode_weight is 0, got 0"),
        (
            {f"{OWN}.step_weight": 0, f"{OWN}.episode_weight": 1, f"{OWN}.penalise": "both"},
            f"{OWN}.penalise must be none where {OWN}.step_weight is 0, got 'both'",
        ),
        ({"algorithm.filter_groups.enable": True}, "algorithm.filter_groups.enable: verl's filter ends the run"),
        ({f"{OWN}.rows_per_step": 0}, f"{OWN}.rows_per_step must be at least 1 or null, got 0"),
        ({f"{OWN}.unknown": 0}, f"{OWN}.unknown is not a setting"),
        ({f"{SESSION}.memory": -1}, f"{SESSION}.memory must be at least 0, got -1"),
        ({f"{SESSION}.state_key": "x"}, f"{SESSION}.state_key must be one of"),
        ({f"{SESSION}.tag": "a b"}, f"{SESSION}.tag must be a name or null, got 'a b'"),
        ({f"{SESSION}.deadline_s": 0}, f"{SESSION}.deadline_s must be > 0, got 0"),
        ({f"{SESSION}.process_gib": 0}, f"{SESSION}.process_gib must be > 0 or null, got 0"),
        (
            {f"{OWN}.penalise": "both", f"{OWN}.penalty": 0},
            f"{OWN}.penalty must be above 0 where",
        ),
        ({"algorithm.gamma": 0.9}, "algorithm.gamma must be 1, got 0.9: verl's GRPO"),
        ({"reward.custom_reward_function.path": "mine.py"}, "reward.custom_reward_function.path must be null"),
        ({"algorithm.adv_estimator": "gae"}, "algorithm.adv_estimator: must be grpo, got 'gae'"),
        ({"algorithm.use_kl_in_reward": True}, "algorithm.use_kl_in_reward: True"),
        ({"actor_rollout_ref.rollout.n": 1}, "actor_rollout_ref.rollout.n: 1 leaves nothing to compare"),
        ({"critic.enable": True}, "critic.enable: True"),
        ({"trainer.v1.trainer_mode": "sync"}, "trainer.v1.trainer_mode: must be hgpo"),
        ({"reward.reward_model.enable": True}, "reward.reward_model.enable: a session earns what its environment"),
        ({f"{ROLLOUT}.agent.default_agent_loop": "tool_agent"}, "default_agent_loop: tool_agent is verl's, whose"),
        ({f"{ROLLOUT}.multi_turn.tool_config_path": "t"}, "multi_turn.tool_config_path: t is read by no session"),
        (
            {"actor_rollout_ref.rollout.multi_turn.max_assistant_turns": None},
            "multi_turn.max_assistant_turns must be at least 1, got None",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_its_full_key_and_value(with_settings, settings, told):
    with pytest.raises(Refused) as refused:
        validate_hgpo_config(with_settings(settings))
    assert told in str(refused.value)


def test_verls_grpo_alone_can_be_asked_for(with_settings):
    assert not list(broken_rules(with_settings({f"{OWN}.step_weight": 0, f"{OWN}.episode_weight": 1})))


def test_the_ways_out_work_when_followed(with_settings):
    wrong = {"algorithm.adv_estimator": "gae", "algorithm.use_kl_in_reward": True, "actor_rollout_ref.rollout.n": 1}
    wrong |= {"algorithm.gamma": 0.9, f"{OWN}.penalise": "both", f"{OWN}.penalty": 0}
    wrong |= {"reward.custom_reward_function.path": "mine.py", "reward.reward_model.enable": True}
    wrong |= {f"{ROLLOUT}.agent.default_agent_loop": "tool_agent", f"{ROLLOUT}.multi_turn.tool_config_path": "t"}
    config = with_settings(wrong)
    ways = " ".join(one.ways[0] for one in broken_rules(config))
    config.merge_with(OmegaConf.from_dotlist(ways.split()))
    assert not list(broken_rules(config))


def test_the_name_of_gigpo_leads_to_its_method(with_settings, shipped):
    [broken] = broken_rules(with_settings({"algorithm.adv_estimator": "gigpo"}))
    asked, method = shipped.copy(), OmegaConf.load(FOLDER / "method" / "gigpo.yaml")
    with open_dict(asked):
        asked.merge_with(method)
    assert OmegaConf.merge(shipped, OmegaConf.from_dotlist(broken.ways[0].split())) == asked


def test_a_mini_batch_of_turns_is_offered_as_the_setting_that_means_it(with_settings):
    config = with_settings({"actor_rollout_ref.actor.ppo_mini_batch_size": 256})
    [broken] = broken_rules(config)
    config.merge_with(OmegaConf.from_dotlist(broken.ways[1].split()))
    assert not list(broken_rules(config))
    assert config.algorithm.hgpo.rows_per_step == 256 and config.actor_rollout_ref.actor.ppo_mini_batch_size == 16


def test_what_the_readme_puts_in_place_of_verl_agents_keys_is_taken():
    text = (FOLDER.parent / "README.md").read_text()
    lines = text.partition("| there | here |")[2].partition("\n\n")[0].splitlines()
    here = [part for line in lines if line for part in re.findall("`([^`]+)`", line.split("|")[2])]
    overrides = [one for part in here for one in part.split() if "=" in one and not one.startswith("+")]
    assert len(overrides) == 13
    for method in ("gigpo", "hgpo_release"):
        with initialize_config_dir(str(FOLDER), version_base=None):
            config = compose("hgpo_trainer", [*RUNS, f"+method={method}", *overrides])
        assert not list(broken_rules(config))


def test_settings_that_are_not_there_are_told_alone_with_the_lines_that_bring_them(shipped):
    config = shipped.copy()
    with open_dict(config):
        del config.algorithm.hgpo, config.actor_rollout_ref.rollout.custom
    [broken] = broken_rules(config)
    assert "pkg://recipe.hgpo.config` and" in broken.told and "`hgpo` under defaults" in broken.told


TASK = {"prompt": "a", "task": {"world": "textworld", "game": "g"}}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (TASK, None),
        (TASK | {"agent_name": "session"}, None),
        ({"prompt": "a", "agent_name": "mine"}, None),
        ({"prompt": "a"}, "must hold a task with its `world` in the column task (recipe/hgpo/README.md), got None"),
        ({"prompt": "a", "task": {"game": "g"}}, "got {'game': 'g'} in row 0"),
        (TASK | {"agent_name": "tool_agent"}, "names tool_agent in agent_name"),
    ],
)
@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_the_first_row_of_each_file_is_a_task_for_sessions(shipped, tmp_path, row, told, kind):
    file = tmp_path / f"rows.{kind}"
    file.write_text(json.dumps([row])) if kind == "json" else pq.write_table(pa.Table.from_pylist([row]), file)
    config = OmegaConf.merge(shipped, {"data": {"train_files": "/not/there.parquet", "val_files": [str(file)]}})
    found = [broken.told for broken in rows_are_tasks(config)]
    assert not found if told is None else told in found[0] and "data.val_files" in found[0]
    assert not list(rows_are_tasks(OmegaConf.merge(config, {"data": {"custom_cls": {"path": "mine.py"}}})))


def test_all_faults_are_told_at_once(with_settings):
    config = with_settings({f"{OWN}.depth": -1, f"{OWN}.gamma": 2, f"{SESSION}.memory": -1})
    told = [one.told for one in broken_rules(config)]
    assert len(told) == 3 and all(any(key in text for text in told) for key in ("depth", "gamma", "memory"))


def test_what_is_on_is_described():
    assert describe(HGPOConfig()) == ["nested groups up to 2 earlier states, divided by their std, weights (k+1)^1"]
    gigpo = HGPOConfig(depth=0, episode_weight=1.0, norm="mean_norm", penalise="both")
    assert describe(gigpo) == [
        "nested groups up to 0 earlier states, not divided, weights (k+1)^1",
        "1 times GRPO over sessions",
        "0.1 less for answers: both",
    ]


def test_settings_of_other_sections_are_not_read(with_settings):
    assert load_hgpo_config(with_settings({f"{SESSION}.memory": -1})).depth == 2


def test_ground_truths_of_sessions_are_no_mathematics(with_settings, tmp_path):
    """The environment gives the reward: nobody grades, at the start or in processes of the reward workers."""
    file, prompt = tmp_path / "games.parquet", [{"role": "user", "content": "Play."}]
    row = {"prompt": prompt, "data_source": "games", "reward_model": {"ground_truth": "unknown"}}
    pq.write_table(pa.Table.from_pylist([row] * 2), file)
    config = with_settings({"data.train_files": str(file), "data.val_files": str(file)})
    check_first_rows(config)
    assert judge_of(row, config) == MANAGER and config.reward.reward_manager.name == "naive"
    config.reward.reward_manager = {"source": "importlib", "name": "R3RewardManager", "module": {"path": OWN_MANAGER}}
    with pytest.raises(ValueError, match="'unknown' stands for no answer"):
        check_first_rows(config)
