"""The settings of PPO and RRL-style replay: what is shipped, what is refused, and ways out that work."""

import shlex
from dataclasses import asdict
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict

from recipe.common.checks import Broken
from recipe.common.config import engines, start_rules
from recipe.common.config.start_rules import followed
from recipe.rrl.config import rrl_config, settings_table
from recipe.rrl.config.rrl_config import RestartsConfig, RRLConfig, StatesConfig, describe
from recipe.rrl.config.rrl_rules import broken_rules, validate_rrl_config

FOLDER = Path(rrl_config.__file__).parent
OWN, ACTOR = "algorithm.rrl", "actor_rollout_ref.actor"
RUNS = [
    "actor_rollout_ref.rollout.name=vllm",
    "data.train_batch_size=16",
    f"{ACTOR}.ppo_mini_batch_size=8",
]


@pytest.fixture(scope="module")
def shipped() -> DictConfig:
    with initialize_config_dir(str(FOLDER), version_base=None):
        return compose("rrl_trainer", RUNS)


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
    found = validate_rrl_config(shipped)
    placed = f"{shipped.trainer.default_local_dir}/states.sqlite"
    assert set_in(found.states) == set_in(StatesConfig(path=placed))
    assert set_in(found.restarts) == set_in(RestartsConfig())
    assert (found.lam_value, found.collect_after) == (None, 50)


def test_yaml_and_readme_are_as_the_command_writes_them():
    for path, text in settings_table.written().items():
        assert path.read_text() == text, f"{path.name} is not up to date: run {settings_table.COMMAND}"


@pytest.mark.parametrize("name", [path.stem for path in sorted((FOLDER / "method").glob("*.yaml"))])
def test_every_method_is_valid(shipped, name):
    config = shipped.copy()
    with open_dict(config):
        config.merge_with(OmegaConf.load(FOLDER / "method" / f"{name}.yaml"))
    assert validate_rrl_config(config).is_on == (name != "ppo")


WITHOUT = {"algorithm.adv_estimator": "grpo", "critic.enable": False}
RIGHT = {f"{OWN}.states.origin": "right", f"{OWN}.restarts.temperature": None}


def test_groups_without_a_critic_can_be_asked_for(with_settings):
    assert not list(broken_rules(with_settings(WITHOUT | RIGHT)))
    cut = {f"{OWN}.states.failed_cut": "random", f"{OWN}.restarts.temperature": None}
    assert not list(broken_rules(with_settings(WITHOUT | cut)))


def test_another_engine_is_told_with_what_was_set_of_it_and_nothing_of_the_recipes_own():
    with initialize_config_dir(str(FOLDER), version_base=None):
        config = compose("rrl_trainer", [*RUNS, "model_engine=megatron"])
    [broken] = broken_rules(config)
    assert broken.told == "actor_rollout_ref.actor.strategy: RRL-style replay trains with fsdp or fsdp2, got 'megatron'"
    assert broken.out == ("model_engine", f"{ACTOR}.megatron", "actor_rollout_ref.ref.megatron")


MODEL = "actor_rollout_ref.model.override_config"
FLASH = "override_config.attn_implementation=flash_attention_2"
SDPA = {MODEL: {"attn_implementation": "sdpa"}}
SEPARATE = {
    "trainer.v1.trainer_mode": "rrl_separate_async",
    "trainer.v1.separate_async.parameter_sync_step": 2,
    "actor_rollout_ref.rollout.nnodes": 1,
    "actor_rollout_ref.rollout.n_gpus_per_node": 1,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "nccl",
}
CASES = [
    ({"trainer.total_training_steps": 100}, f"{OWN}.restarts.after: 150 leaves no step to restart in"),
    ({f"{OWN}.states.room": 1.0}, f"{OWN}.states.room must be in [0, 1), got 1.0"),
    ({f"{OWN}.states.origin": "x"}, f"{OWN}.states.origin must be one of failed, right, both, got 'x'"),
    ({f"{OWN}.states.failed_cut": "x"}, f"{OWN}.states.failed_cut must be one of value, random, start, got 'x'"),
    ({f"{OWN}.states.right_cut": "x"}, f"{OWN}.states.right_cut must be one of steered, fixed, random, got 'x'"),
    ({f"{OWN}.states.score": "x"}, f"{OWN}.states.score must be one of gain, raw, got 'x'"),
    ({f"{OWN}.states.hard": 2}, f"{OWN}.states.hard must be in [0, 1], got 2"),
    ({f"{OWN}.states.max_per_query": 0}, f"{OWN}.states.max_per_query must be at least 1, got 0"),
    ({f"{OWN}.states.floor": "x"}, f"{OWN}.states.floor must be a number, got 'x'"),
    ({f"{OWN}.states.path": ""}, f"{OWN}.states.path must be a file path, got ''"),
    ({f"{OWN}.restarts.share": 1}, f"{OWN}.restarts.share must be in [0, 1), got 1"),
    ({f"{OWN}.restarts.temperature": 0}, f"{OWN}.restarts.temperature must be above 0 or null, got 0"),
    ({f"{OWN}.lam_value": 2}, f"{OWN}.lam_value must be in [0, 1] or null, got 2"),
    ({f"{OWN}.collect_after": -1}, f"{OWN}.collect_after must be at least 0, got -1"),
    ({f"{OWN}.unknown": 0}, f"{OWN}.unknown is not a setting"),
    ({f"{OWN}.states.earliest": 0.9}, f"{OWN}.states.earliest must be below {OWN}.states.latest=0.8, got 0.9"),
    ({f"{OWN}.restarts.after": 1}, f"{OWN}.restarts.after must be at least {OWN}.collect_after="),
    (WITHOUT, f"{OWN}.states.failed_cut: value needs a critic, and critic.enable is False"),
    (WITHOUT | RIGHT | {f"{OWN}.lam_value": 1.0}, f"{OWN}.lam_value: 1.0 without a critic has no effect"),
    ({"algorithm.adv_estimator": "grpo"}, "algorithm.adv_estimator: grpo with critic.enable=True"),
    ({"critic.enable": False}, "algorithm.adv_estimator: gae with critic.enable=False"),
    ({"algorithm.adv_estimator": "rloo"}, "algorithm.adv_estimator: must be gae, with a critic, or grpo"),
    (WITHOUT | RIGHT | {"actor_rollout_ref.rollout.n": 1}, "actor_rollout_ref.rollout.n: 1 leaves nothing to compare"),
    ({"algorithm.use_pf_ppo": True}, "algorithm.use_pf_ppo: True gives rows the advantages of others"),
    ({"algorithm.filter_groups.enable": True}, "algorithm.filter_groups.enable: verl's filter (DAPO)"),
    ({"data.gen_batch_size": None}, "data.gen_batch_size: None would fetch whole batches"),
    ({"critic.strategy": "megatron"}, "critic.strategy: must be fsdp or fsdp2, got 'megatron'"),
    ({"critic.ppo_max_token_len_per_gpu": 8192}, "critic.ppo_max_token_len_per_gpu: 8192 does nothing"),
    ({"critic.ppo_infer_max_token_len_per_gpu": 64}, "critic.ppo_infer_max_token_len_per_gpu: 64 is below the 1024"),
    ({"critic.grad_clip": 0.5}, "critic.grad_clip: 0.5 does nothing in verl's v1 trainer"),
    ({"critic.ulysses_sequence_parallel_size": 2}, "critic.ulysses_sequence_parallel_size: 2 does nothing"),
    (
        {"critic.fsdp.ulysses_sequence_parallel_size": 2} | SDPA,
        "critic.fsdp.ulysses_sequence_parallel_size: 2 with attn_implementation=sdpa",
    ),
    ({f"{OWN}.states.origin": "right", f"{OWN}.states.hard": 0.1}, f"{OWN}.states.hard: 0.1 of"),
    ({"critic.ppo_micro_batch_size_per_gpu": 4}, "critic.ppo_micro_batch_size_per_gpu: 4 does nothing"),
    ({"critic.use_dynamic_bsz": False}, "critic.use_dynamic_bsz: False does nothing"),
    ({"critic.ppo_mini_batch_size": 5}, "critic.ppo_mini_batch_size: 5 must divide data.train_batch_size=16"),
    (
        SEPARATE | {"critic.ppo_mini_batch_size": 16},
        f"critic.ppo_mini_batch_size: 16 must divide {ACTOR}.ppo_mini_batch_size=8",
    ),
    ({"actor_rollout_ref.rollout.multi_turn.enable": True}, "actor_rollout_ref.rollout.multi_turn.enable: a restart"),
    (
        {"actor_rollout_ref.rollout.agent.default_agent_loop": "tool_agent"},
        "actor_rollout_ref.rollout.agent.default_agent_loop: a restart",
    ),
    (
        {
            "actor_rollout_ref.rollout.multi_turn.enable": True,
            "actor_rollout_ref.rollout.agent.default_agent_loop": "x",
        },
        "actor_rollout_ref.rollout.multi_turn.enable: a restart",
    ),
    ({"reward.reward_model.enable": True}, "reward.reward_model.enable: which answers are right decides"),
    ({"critic.ppo_mini_batch_size": None}, "critic.ppo_mini_batch_size must be a whole number of at least 1, got None"),
    ({"critic.ppo_epochs": 0}, "critic.ppo_epochs must be a whole number of at least 1, got 0"),
    ({"critic.optim.lr": None}, "critic.optim.lr must be a number > 0, got None"),
    ({"critic.model.lora_rank": 8}, "critic.model.lora_rank: 8, and verl's LoRA does not take a value model"),
    ({"algorithm.lam": None}, "algorithm.lam must be in [0, 1], got None"),
    ({"critic.forward_max_token_len_per_gpu": 8192}, "critic.forward_max_token_len_per_gpu: 8192 does nothing"),
    ({"critic.forward_micro_batch_size_per_gpu": 4}, "critic.forward_micro_batch_size_per_gpu: 4 does nothing"),
    (
        {f"{OWN}.restarts.share": 0, "reward.reward_model.enable": True},
        "reward.reward_model.rollout.name must name what runs",
    ),
    ({"trainer.v1.trainer_mode": "sync"}, "trainer.v1.trainer_mode: must be rrl"),
]


@pytest.mark.parametrize(("settings", "told"), CASES)
def test_what_cannot_work_is_refused_and_every_way_out_works(with_settings, settings, told):
    config = with_settings(settings)
    broken = list(broken_rules(config))
    assert told in "\n".join(one.told for one in broken)
    for one in broken:
        assert one.ways or one.out, one.told
        for way in one.ways:
            mended = followed(without(config, one.out), [Broken("", ways=(shlex.join(shlex.split(way)),))])
            assert one.told not in [again.told for again in broken_rules(mended)], f"{one.told}: {way}"


def without(config: DictConfig, keys: tuple[str, ...]) -> DictConfig:
    """The config as it is where these were never set; of a group of ours, its defaults."""
    new = config.copy()
    with open_dict(new):
        for key in keys:
            if key.startswith("critic."):
                OmegaConf.update(new, key, engines.verl_defaults()[key])
    return new


def test_the_ways_of_one_mini_batch_for_both_models_go_together(with_settings):
    wrong = with_settings({f"{ACTOR}.ppo_mini_batch_size": 12})
    broken = list(broken_rules(wrong))
    assert len(broken) == 2 and not list(broken_rules(followed(wrong, broken)))


def test_the_critics_attention_is_set_where_it_is_its_own(with_settings):
    two = {"critic.fsdp.ulysses_sequence_parallel_size": 2, "critic.model.override_config": SDPA[MODEL]}
    more = {"critic.model.override_config": {"attn_implementation": None, "rope_theta": 5}}
    assert not list(broken_rules(with_settings(two | more))), "verl's default is flash attention"
    more["critic.model.override_config"]["attn_implementation"] = "eager"
    for given, also in ((two, ""), (two | SDPA, ""), (two | more, " ++critic.model.override_config.rope_theta=5")):
        config = with_settings(given)
        broken = [one for one in broken_rules(config) if "critic" in one.told]
        assert set(broken[0].ways[0].split()) == {f"++critic.model.{FLASH}", *also.split()}
        assert not [one for one in broken_rules(followed(config, broken)) if "critic" in one.told]


def test_keys_of_a_model_that_verl_does_not_have_are_told_with_their_new_place(with_settings):
    old = {"param_offload": True, "wrap_policy": {"min_num_params": 1}}
    config = with_settings({"critic.model.fsdp_config": old, f"{MODEL.rpartition('.')[0]}.lora_rnak": 8})
    actors, critics = start_rules.models_read(config)
    assert (actors.out, actors.ways) == (("actor_rollout_ref.model.lora_rnak",), ())
    assert critics.out == ("critic.model.fsdp_config",) and "critic.fsdp.param_offload=True" in critics.ways[0]
    assert all(way.partition("=")[0] in engines.verl_defaults() for way in critics.ways[0].split())
    without_critic = with_settings({"critic.model.fsdp_config": old, "critic.enable": False})
    assert not list(start_rules.models_read(without_critic))
    theirs = {"actor_rollout_ref.model": {"_target_": "mine.Model", "extra": 1, "path": "x"}}
    assert not list(start_rules.models_read(with_settings(theirs)))


def test_settings_that_are_not_there_are_told_alone_with_the_lines_that_bring_them(shipped):
    config = shipped.copy()
    with open_dict(config):
        del config.algorithm.rrl
    [broken] = broken_rules(config)
    assert "pkg://recipe.rrl.config` and" in broken.told and "`rrl` under defaults" in broken.told


def test_filter_generation_batches_and_turns_are_no_matter_without_restarts(with_settings):
    ppo = {f"{OWN}.restarts.share": 0, "data.gen_batch_size": None}
    assert not list(broken_rules(with_settings(ppo | {"actor_rollout_ref.rollout.multi_turn.enable": True})))


def test_what_is_on_is_told():
    assert describe(RRLConfig(restarts=RestartsConfig(share=0.0))) == ["PPO"]
    told = describe(RRLConfig(lam_value=0.95, states=StatesConfig(origin="both")))
    assert told[:2] == ["PPO", "the critic's lambda 0.95"]
    assert "failed answers, cut by value and of right answers, cut steered" in told[2]
