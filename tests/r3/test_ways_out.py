"""Advice is executable: each way out that a sentence names is followed as it stands there, and the rule is kept then.

Every place where a rule is told is reached by a case here.
"""

import ast
import inspect
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from recipe.common.checks import Broken, Refused
from recipe.common.config import engines, lengths, mode_rules, reward_rules, start_rules, value_rules, verl_rules
from recipe.r3.config import r3_config, r3_rules
from recipe.r3.config.r3_rules import all_rules, broken_rules

FOLDER = Path(r3_config.__file__).parent
MODULES = engines, lengths, mode_rules, reward_rules, start_rules, value_rules, verl_rules, r3_config, r3_rules
ACTOR, ROLLOUT, R3 = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm.r3"
CORRECTION, MANAGER, FUNCTION = "algorithm.rollout_correction", "reward.reward_manager", "reward.custom_reward_function"
ASYNC, SEPARATE = "trainer.v1.trainer_mode=r3_colocate_async", "trainer.v1.trainer_mode=r3_separate_async"
START = (f"{ACTOR}.use_dynamic_bsz=True", f"{ROLLOUT}.log_prob_use_dynamic_bsz=True", f"{ROLLOUT}.name=vllm")
"""What has no default in verl: the size of micro-batches, and who generates."""
GENERATES = (
    SEPARATE,
    f"{ROLLOUT}.nnodes=1",
    f"{ROLLOUT}.n_gpus_per_node=1",
    f"{ROLLOUT}.checkpoint_engine.backend=nccl",
)
APART = (*GENERATES, "trainer.v1.separate_async.parameter_sync_step=4")
SDPA = "+actor_rollout_ref.model.override_config.attn_implementation=sdpa"
FIXED = (f"{ACTOR}.use_dynamic_bsz=False", f"{ROLLOUT}.log_prob_use_dynamic_bsz=False")
LENGTHS = ("data.max_prompt_length=1024", "data.max_response_length=8192")
MINE = """
def compute_score(data_source, solution_str, ground_truth, extra_info): return 0.0
async def later(data_source, solution_str, ground_truth, extra_info): ...
"""
JUDGED = "judge of a method that takes one"
PACKED = "actor_rollout_ref.model.use_remove_padding=True"


def cases(folder: Path) -> dict[str, tuple[str, ...]]:
    """Overrides that break a rule, by what they are about."""
    (folder / "mine.py").write_text(MINE)
    mine = f"{FUNCTION}.path={folder}/mine.py"
    return {
        "kinds": (
            *("data.train_batch_size=null", f"{ACTOR}.optim.lr=nan", f"{ACTOR}.ppo_epochs=0"),
            *(f"{ROLLOUT}.temperature=0", "trainer.resume_mode=foo", f"{ACTOR}.kl_loss_type=foo"),
        ),
        "kind and rule": ("data.train_batch_size=null", f"{ACTOR}.ppo_mini_batch_size=300"),
        "nowhere": ("trainer.experiment_name=${nothing}",),
        "seed": ("data.seed=null",),
        "estimator": ("algorithm.adv_estimator=grpo",),
        "no entropies": ("algorithm.adv_estimator=rl_zvp", f"{CORRECTION}.bypass_mode=True"),
        "old trainer": ("trainer.use_v1=False",),
        "verl's mode": ("trainer.v1.trainer_mode=colocate_async",),
        "sync": ("trainer.v1.trainer_mode=sync",),
        "modules": (f"++{verl_rules.MODULES}=recipe.r3.reflection",),
        "sampler": ("trainer.v1.sampler.sync_refill_failed_groups=True",),
        "no group": (f"{ROLLOUT}.n=1",),
        "critic": ("critic.enable=True", "critic.ppo_micro_batch_size_per_gpu=1"),
        "critic settings": ("critic.optim.lr=1e-6", "critic.model.path=mine"),
        "warm-up": ("trainer.critic_warmup=3",),
        "weights": (f"{CORRECTION}.rollout_is=token", f"{ROLLOUT}.calculate_log_probs=False"),
        "rejected": (f"{CORRECTION}.rollout_rs=seq_mean_k1", f"{CORRECTION}.rollout_rs_threshold='0.5_2.0'"),
        "no threshold": (f"{CORRECTION}.rollout_rs=token_k1",),
        "bypass loss": (f"{ACTOR}.policy_loss.loss_mode=bypass_mode",),
        "bypass": (f"{CORRECTION}.bypass_mode=True",),
        "bypass with its loss": (f"{CORRECTION}.bypass_mode=True", f"{ACTOR}.policy_loss.loss_mode=bypass_mode"),
        "ulysses": (SDPA, f"{ACTOR}.ulysses_sequence_parallel_size=2", PACKED),
        "mini-batch": (f"{ACTOR}.ppo_mini_batch_size=300",),
        "mini-batch 0": (f"{ACTOR}.ppo_mini_batch_size=0",),
        "prompt": (f"{ROLLOUT}.prompt_length=500",),
        "response": (f"{ROLLOUT}.response_length=500",),
        "context": (f"{ROLLOUT}.max_model_len=1000",),
        "no context": (f"{ROLLOUT}.max_model_len=500",),
        "vLLM's context": (f"++{ROLLOUT}.engine_kwargs.vllm.max_model_len=1000",),
        "tokens": (*LENGTHS, f"{ACTOR}.ppo_max_token_len_per_gpu=5000"),
        "tokens of two": (
            *LENGTHS,
            f"{ACTOR}.ppo_max_token_len_per_gpu=4000",
            f"{ACTOR}.ulysses_sequence_parallel_size=2",
            PACKED,
        ),
        "tokens of log-probs": (*LENGTHS, f"{ROLLOUT}.log_prob_max_token_len_per_gpu=5000"),
        "micro-batch": FIXED,
        "micro-batch of the reference": (
            *FIXED,
            f"{ACTOR}.ppo_micro_batch_size_per_gpu=1",
            f"{ACTOR}.use_kl_loss=True",
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=1",
        ),
        "micro-batch of all GPUs": (
            *FIXED,
            f"{ACTOR}.ppo_micro_batch_size=16",
            f"{ROLLOUT}.log_prob_micro_batch_size=16",
        ),
        "dynamic": (f"{ROLLOUT}.log_prob_use_dynamic_bsz=False",),
        "strategy": (ASYNC, "trainer.v1.sampler.max_off_policy_strategy=weit"),
        "age": (ASYNC, "trainer.v1.sampler.max_off_policy_threshold=0"),
        "ahead": (ASYNC, "trainer.v1.colocate_async.num_warmup_batches=-1"),
        "syncs": (*GENERATES, "trainer.v1.separate_async.parameter_sync_step=3"),
        "syncs of no mini-batch": (*GENERATES, f"{ACTOR}.ppo_mini_batch_size=300"),
        "no GPUs": (*APART, f"{ROLLOUT}.nnodes=0"),
        "naive": (*APART, f"{ROLLOUT}.checkpoint_engine.backend=naive"),
        "offload": (*APART, f"{ACTOR}.fsdp_config.param_offload=True"),
        "hybrid": (*APART, "actor_rollout_ref.hybrid_engine=False"),
        "filter": ("algorithm.filter_groups.enable=True",),
        "filter of fetches": ("algorithm.filter_groups.enable=True", "data.gen_batch_size=300"),
        "fetches": ("data.gen_batch_size=300",),
        "exported": (),
        "teacher": ("distillation.enabled=True",),
        "judge": ("reward.reward_model.enable=True",),
        JUDGED: ("reward.reward_model.enable=True", "reward.reward_model.model_path=judge"),
        "key of a model": ("+actor_rollout_ref.model.lora_rnak=8",),
        "attempts": (f"{ROLLOUT}.n=2",),
        "turns": (f"{ROLLOUT}.multi_turn.enable=True",),
        "tools": (f"{ROLLOUT}.agent.default_agent_loop=tool_agent",),
        "shuffle": (f"{ACTOR}.shuffle=True",),
        "taper": (f"{R3}.replay.outcome=both", f"{ROLLOUT}.calculate_log_probs=False"),
        "restarted late": (f"{R3}.reflection.ask=restart", f"{R3}.reflection.when=next_step"),
        "restarted from old": (f"{R3}.reflection.ask=restart", f"{R3}.replay.max_age=3"),
        "restarted for nobody": (f"{R3}.reflection.ask=restart", f"{R3}.replay.same_step=False"),
        "restarted and not replayed": (f"{R3}.reflection.ask=restart", f"{R3}.replay.enable=False"),
        "restarted from nothing": (f"{R3}.reflection.ask=restart", f"{ROLLOUT}.calculate_log_probs=False"),
        "any prompt": (f"{R3}.replay.outcome=any_prompt",),
        "ranked": ("reward.reward_kwargs.correct_from=0.5",),
        "held without a batch that waits": (
            "trainer.v1.trainer_mode=r3_colocate_async",
            f"{R3}.reflection.when=next_step",
        ),
        "asked in vain": (ASYNC, "trainer.v1.sampler.max_off_policy_threshold=1", f"{R3}.reflection.when=at_once"),
        "recorded": ("skip.rollout_tq.enable=True", f"{R3}.reflection.when=at_once"),
        "asked plainly at the next visit": (f"{R3}.reflection.ask=plain", f"{R3}.reflection.when=next_visit"),
        "ranked above nothing": ("reward.reward_kwargs.correct_from=0",),
        "correct": ("reward.reward_kwargs.correct_from=half",),
        "own values": (
            f"{R3}.replay.k=0",
            f"{R3}.reflection.threshold=2",
            f"{R3}.replay.alpha=0",
            f"{R3}.history.path=''",
        ),
        "own values and verl's": (f"{R3}.replay.k=0", f"+{R3}.ranking.x=1", f"{CORRECTION}.bypass_mode=True"),
        "own names": (f"+{R3}.replay.size=1",),
        "gone": (f"+{R3}.ranking.scope=failed", f"+{R3}.seed=3"),
        "manager's source": (f"{MANAGER}.source=registre",),
        "verl's manager": (f"{MANAGER}.name=dapo",),
        "verl's with arguments": (
            f"{MANAGER}.name=dapo",
            "+reward.reward_kwargs.overlong_buffer_cfg.enable=True",
        ),
        "nobody's manager": (f"{MANAGER}.name=batch", "reward.reward_kwargs.grader_workers=0"),
        "unregistered": (f"{MANAGER}.source=register", f"{MANAGER}.name=prime"),
        "manager's arguments": (
            "+reward.reward_kwargs.overlong_buffer_cfg.enable=True",
            "reward.reward_kwargs.grader_workers=0",
        ),
        "no arguments": ("reward.reward_kwargs=5",),
        "sandbox": ("reward.sandbox_fusion.url=http://h",),
        "coroutine": (mine, f"{FUNCTION}.name=later"),
        "no name": (mine, f"{FUNCTION}.name=null"),
        "unknown name": (mine, f"+{FUNCTION}.nmae=later"),
        "policy loss": (f"{ACTOR}.policy_loss.loss_mode=gsppo",),
        "old rollout": (f"{ROLLOUT}.mode=sync",),
        "old function": (f"custom_reward_function.path={folder}/mine.py",),
        "old function of a fork": (
            f"custom_reward_function.path={folder}/mine.py",
            "+custom_reward_function.overlong_buffer.enable=True",
        ),
        "old manager": (
            "reward_model.reward_manager=dapo",
            "+reward_model.reward_kwargs.overlong_buffer_cfg.enable=False",
        ),
        "old arguments": ("+reward_model.reward_kwargs.overlong_buffer_cfg.enable=True",),
        "older manager": (
            "reward_model.reward_manager=prime",
            "reward_model.enable=False",
            "reward_model.num_workers=3",
        ),
        "old judge": ("reward_model.enable=True", "reward_model.model.path=judge", "reward_model.rollout.name=vllm"),
        "old sandbox": ("sandbox_fusion.url=http://h", "sandbox_fusion.max_concurrent=8"),
        "megatron": (
            "model_engine=megatron",
            f"{ACTOR}.megatron.tensor_model_parallel_size=4",
            f"{ACTOR}.megatron.param_offload=True",
            f"{ACTOR}.optim.lr=3e-6",
            "critic.megatron.param_offload=True",
            "+actor_rollout_ref.ref.megatron.override_transformer_config.x=1",
            f"{ACTOR}.optim.lr_decay_style=cosine",
        ),
        "veomni": (
            "model_engine=veomni",
            f"{ACTOR}.veomni.ulysses_parallel_size=2",
            "actor_rollout_ref.ref.veomni.optimizer_offload=False",
            f"{ACTOR}.veomni.optimizer_offload=True",
            PACKED,
        ),
        "torchtitan": ("model_engine=torchtitan",),
        "engine's name": (f"{ACTOR}.strategy=megatron",),
    }


NAMES = list(cases(Path("/tmp")))


def composed(overrides: tuple[str, ...]) -> DictConfig:
    with initialize_config_dir(str(FOLDER), version_base=None):
        return compose("r3_trainer", [*START, *overrides])


def read(sentence: str) -> Iterator[tuple[list[str], list[str]]]:
    """(settings to leave out, overrides to put in) of each way out, as a person would copy them from the sentence."""
    _, _, end = sentence.rpartition("; leave out ")
    out, _, ways = end.partition("; set ") if "; leave out " in sentence else ("", "", sentence.rpartition("; set ")[2])
    left = out.split(", ") if out else []
    texts = ways.split(", or ") if "; set " in sentence else [""]
    yield from ((left, shlex.split(text)) for text in texts)


def without(overrides: Iterable[str], left: list[str]) -> list[str]:
    keys = {text: OverridesParser.create().parse_override(text).key_or_group for text in overrides}
    return [text for text, key in keys.items() if not any(key == one or key.startswith(f"{one}.") for one in left)]


ASKED = {
    *("no threshold", "coroutine", "no name", "unknown name", "policy loss", "old rollout", "unregistered"),
    *("old function of a fork", "micro-batch", "micro-batch of all GPUs", "micro-batch of the reference", "dynamic"),
    *("megatron", "kinds", "kind and rule", "nowhere", "key of a model"),
}
"""Cases of rules that ask verl or load something; the others are told by settings alone, which is quicker."""


def rules(name: str, overrides: Iterable[str]) -> list[Broken]:
    ask = start_rules.of_any_method if name == JUDGED else all_rules if name in ASKED else broken_rules
    return list(ask(composed(tuple(overrides))))


@pytest.fixture(scope="module")
def places() -> set[tuple[str, int]]:
    """Where a rule was told, by module and line."""
    found = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VERL_LOGGING_LEVEL", raising=False)
        for module in MODULES:

            def told(*given, **named):
                frame = sys._getframe(1)
                found.add((frame.f_globals["__name__"], frame.f_lineno))
                return Broken(*given, **named)

            patch.setattr(module, "Broken", told)
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_way_out_gets_further(places, name, tmp_path, monkeypatch):
    """Followed one at a time, as the sentence has it: that sentence does not come again, and no new one comes."""
    if name == "exported":
        monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "recipe.r3.r3_trainer,mine")
    overrides = cases(tmp_path)[name]
    answer = rules(name, overrides)
    assert answer, "the case breaks no rule"
    before = {subject(one) for one in answer}
    for broken in answer:
        assert broken.ways or broken.out, broken.told
        # The others speak of the settings as they are once verl's old sections, or another engine's, are replaced.
        first = next(read(str(answer[0]))) if answer[0].out and broken is not answer[0] else ([], [])
        for left, put in read(str(broken)):
            after = rules(name, [*without(overrides, [*first[0], *left]), *first[1], *put])
            assert broken.told not in [one.told for one in after], put
            assert {subject(one) for one in after} <= before, (put, [one.told for one in after])


def subject(broken: Broken) -> str:
    """The key that a sentence begins with."""
    return re.split("[: =,]", broken.told)[0]


@pytest.mark.slow
def test_every_rule_is_reached_by_a_case(places):
    """Of the cases above, which run before."""
    unreached = []
    for module in MODULES:
        source = Path(inspect.getfile(module))
        calls = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Call)]
        told = [node for node in calls if getattr(node.func, "id", None) == "Broken"]
        # A config without R^3's section is another config: test_config.py has it.
        lines = [node.lineno for node in told if "is missing" not in ast.unparse(node)]
        unreached += [f"{source.name}:{line}" for line in lines if (module.__name__, line) not in places]
    assert unreached == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "together",
    [
        ("seed", "critic settings", "old manager", "context", "filter", "own values", "mini-batch"),
        ("megatron", "seed", "old judge", "manager's arguments", "no group", "gone"),
    ],
)
def test_the_block_at_the_end_of_an_answer_mends_all(together, tmp_path):
    given = [text for name in together for text in cases(tmp_path)[name]]
    text = str(Refused(rules("", given)))
    _, _, block = text.partition("For all of them, ")
    lines = [line.strip().removesuffix(" \\") for line in block.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith("and put"))
    left, put = lines[1:start], [part for line in lines[start + 1 :] for part in shlex.split(line)]
    assert rules("", [*without(given, left), *put]) == []


def test_a_single_broken_rule_is_told_in_one_line():
    assert str(Refused([Broken("a: 1 is wrong", ("a=2 b=3", "a=3"))])) == "a: 1 is wrong; set a=2 b=3, or a=3"


def test_a_value_is_written_as_hydra_and_the_shell_read_it():
    values = [
        "a,b",
        "it's",
        'say "x"',
        None,
        True,
        0.5,
        [1, "x y"],
        "null",
        "5",
        "",
        "pkg://recipe.common.reward",
        "~/models/mine",
        r"a\b",
    ]
    for value in values:
        (text,) = shlex.split(verl_rules.setting("a.b", value))
        assert OverridesParser.create().parse_override(text).value() == value, text
