"""The settings: every bad combination refused with its keys, and the ways out that work."""

import pytest

from recipe.r3.config.r3_rules import broken_rules, validate_r3_config

# combinations: verl's defaults are max_prompt_length = max_response_length = 512, train_batch_size 1024

SDPA = {"actor_rollout_ref.model.override_config.attn_implementation": "sdpa"}
PARALLEL = "actor_rollout_ref.actor.ulysses_sequence_parallel_size"
THRESHOLD = "algorithm.rollout_correction.rollout_is_threshold"
AT_ONCE = {"trainer.v1.trainer_mode": "r3_colocate_async", "algorithm.r3.reflection.when": "at_once"}
COMBINATIONS = [
    ({"data.seed": None}, "data.seed must be a whole number >= 0, got None"),
    ({"data.seed": -1}, "data.seed must be a whole number >= 0, got -1"),
    ({"data.seed": 0.5}, "data.seed must be a whole number >= 0, got 0.5"),
    ({"reward.reward_kwargs.correct_from": "half"}, "reward.reward_kwargs.correct_from must be a number, got 'half'"),
    (
        {"reward.reward_kwargs.correct_from": 0.5},
        "algorithm.r3.ranking.max_reward: 0.5 is not below reward.reward_kwargs.correct_from=0.5",
    ),
    (
        {"algorithm.adv_estimator": "grpo"},
        "algorithm.adv_estimator: must be r3, got 'grpo'; set algorithm.adv_estimator=r3$",
    ),
    ({"reward.reward_manager.name": "dapo"}, "reward.reward_manager.name: dapo .*manager.source=register"),
    ({"critic.enable": True}, "critic.enable: .*set critic.enable=False"),
    (
        {"algorithm.rollout_correction.bypass_mode": True},
        "algorithm.r3.ranking.enable: .*bypass_mode=True skips; set .*bypass_mode=False, or .*ranking.enable=False",
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
    ({"algorithm.filter_groups.enable": True}, "algorithm.filter_groups.enable: .*; set .*enable=False$"),
    (
        {"algorithm.filter_groups.enable": True, "algorithm.r3.replay.enable": False},
        "algorithm.filter_groups.enable: verl filters nothing with a custom sampler",
    ),
    ({"trainer.v1.trainer_mode": "colocate_async"}, "trainer.v1.trainer_mode: must be r3, r3_colo.*got 'colocate"),
    (
        {"trainer.v1.trainer_mode": "r3_separate_async", "actor_rollout_ref.actor.fsdp_config.offload_policy": True},
        "actor_rollout_ref.actor.fsdp_config: offload_policy=True, .*offload_policy=False ",
    ),
    (
        {**AT_ONCE, "trainer.v1.sampler.max_off_policy_threshold": 1},
        "algorithm.r3.reflection.when: at_once asks nobody with trainer.v1.sampler.max_off_policy_threshold=1",
    ),
    ({"reward.reward_model.enable": True}, "reward.reward_model.enable: .*set reward.reward_model.enable=False"),
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
        "actor_rollout_ref.rollout.agent.default_agent_loop: .*=single_turn_agent",
    ),
    ({"actor_rollout_ref.actor.strategy": "megatron"}, "actor_rollout_ref.actor.strategy: R.3 trains with fsdp or"),
    ({"actor_rollout_ref.actor.shuffle": True}, "actor_rollout_ref.actor.shuffle: .*shuffle=False"),
    (
        {"actor_rollout_ref.rollout.prompt_length": 511},
        "actor_rollout_ref.rollout.prompt_length: 511 is below data.max_prompt_length=512: .*=512, or .*=511",
    ),
    (
        {
            "algorithm.r3.replay.outcome": "wrong",
            "actor_rollout_ref.rollout.calculate_log_probs": False,
        },
        "algorithm.r3.replay.correction: tapered .*set actor_rollout_ref.rollout.calculate_log_probs=True",
    ),
    (
        {"algorithm.rollout_correction.rollout_is": "token", "actor_rollout_ref.rollout.calculate_log_probs": False},
        "algorithm.rollout_correction.rollout_is: token, .*set actor_rollout_ref.rollout.calculate_log_probs=True",
    ),
    (
        {"algorithm.rollout_correction.rollout_rs": "token_k1", "actor_rollout_ref.rollout.calculate_log_probs": False},
        "algorithm.rollout_correction.rollout_is: None, or rollout_rs=token_k1, needs .*, or .*rollout_is=null ",
    ),
    (
        {"actor_rollout_ref.actor.policy_loss.loss_mode": "bypass_mode"},
        "actor_rollout_ref.actor.policy_loss.loss_mode: bypass_mode takes old .*loss_mode=vanilla",
    ),
    (
        {"custom_reward_function.path": "mine.py"},
        "custom_reward_function.path='mine.py' has no .*set reward.custom_reward_function.path=mine.py$",
    ),
    ({"custom_reward_function.reward_kwargs.strict": False}, "custom_reward_function.reward_kwargs.strict=False has"),
    (
        {"reward_model.reward_manager": "dapo"},
        "reward_model.reward_manager='dapo' has no .*reward.reward_manager.name=dapo",
    ),
    ({"reward_model.model.path": "judge"}, "reward_model.model.path='judge' has no effect"),
    (
        {"sandbox_fusion.url": "http://h"},
        "sandbox_fusion.url='http://h' has no effect, .*set reward.sandbox_fusion.url",
    ),
    ({**SDPA, PARALLEL: 2}, f"{PARALLEL}: 2 with attn_implementation=sdpa: .*flash_attention_2, or .*size=1 "),
    (
        {**SDPA, "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": 4},
        f"{PARALLEL}: 4 with attn_implementation=sdpa",
    ),
    (
        {"actor_rollout_ref.rollout.max_model_len": 1023},
        "actor_rollout_ref.rollout.max_model_len: 1023 is below data.max_prompt_length=512 .*"
        "max_model_len=1024, or data.max_response_length=511",
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
    """Each way out is followed in test_ways_out.py."""
    with pytest.raises(ValueError, match=f"(^|\n- ){message}"):
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
        {"algorithm.rollout_correction.rollout_rs": "token_k1"},
        {
            **{**OFF, "algorithm.rollout_correction.bypass_mode": True},
            "actor_rollout_ref.actor.policy_loss.loss_mode": "bypass_mode",
        },
        {"algorithm.rollout_correction.rollout_is": "token", THRESHOLD: "0.5_5.0"},
        {
            **{"reward.sandbox_fusion.url": "http://h", "reward.reward_manager.source": "register"},
            "reward.reward_manager.name": "naive",
        },
        {"actor_rollout_ref.rollout.max_model_len": 1024},
        {"data.max_prompt_length": 511, "actor_rollout_ref.rollout.max_model_len": 1023},
        {"actor_rollout_ref.actor.ppo_mini_batch_size": 1024},
        AT_ONCE,
        {**AT_ONCE, "trainer.v1.sampler.max_off_policy_threshold": None},
    ],
)
def test_the_ways_out_work(with_settings, settings):
    validate_r3_config(with_settings(settings))


def test_all_broken_rules_can_be_told_at_once(with_settings):
    config = with_settings({"critic.enable": True, "actor_rollout_ref.rollout.n": 1})
    told = list(broken_rules(config))
    assert [one.told.partition(":")[0] for one in told] == ["critic.enable", "actor_rollout_ref.rollout.n"]
    with pytest.raises(ValueError) as refused:
        validate_r3_config(config)
    sentences = str(refused.value).splitlines()
    assert sentences[:3] == ["2 things cannot work", *(f"- {one}" for one in told)]
    assert sentences[-2:] == ["    critic.enable=False \\", "    actor_rollout_ref.rollout.n=8"]
