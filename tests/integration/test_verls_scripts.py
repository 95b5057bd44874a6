r"""Two of verl's own scripts, shrunk to the tiny model: answers earn what they earn under verl.

`python -m recipe.r3.main_r3` runs the settings of a script after README's diff, `python -m verl.trainer.main_ppo` those
of DAPO's as they are. Each run generates its own answers and asks its own reward workers; the answers that occur in
both are compared. The profile `embedded` stands for the machine.
"""

import json
import random
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pandas
import pytest

from r3_ext.cpu.fork import environment as forks
from r3_ext.settings.compose import OWN_CONFIG, PLATFORM
from recipe.common.config.verl_rules import MODULES
from recipe.r3.config.r3_rules import OWN_MODULES
from verl.utils.reward_score import default_compute_score

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PPO, R3 = "verl.trainer.main_ppo", "recipe.r3.main_r3"
SHORT = {
    "ACTOR": "actor_rollout_ref.actor",
    "MODEL": "actor_rollout_ref.model",
    "REF": "actor_rollout_ref.ref",
    "ROLLOUT": "actor_rollout_ref.rollout",
    "OVERLONG": "reward_model.reward_kwargs.overlong_buffer_cfg",
}
GSM8K, DAPO_MATH = "openai/gsm8k", "math_dapo"
PROMPTS = {
    GSM8K: "Ann has {} pens and buys {} more. How many has she? Let's think step by step and output the final answer "
    'after "####".',
    DAPO_MATH: "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is {} + {}?\n\nRemember to "
    'put your answer on its own line after "Answer:".',
}
"""As verl's preprocessing of GSM8K and the data set DAPO-Math-17k ask."""
ROWS = 8
"""Of each data source: a step asks all of them."""


def settings_of(text: str) -> list[str]:
    """What a script sets, but for sizes, paths, names and loggers. ACTOR and the like stand for what SHORT says."""
    return re.sub(r"\b[A-Z]{3,}(?=\.)", lambda found: SHORT[found[0]], text).split()


# examples/tuning/lora/run_qwen3_8b_fsdp.sh
LORA = settings_of("""
    algorithm.use_kl_in_reward=False
    data.filter_overlong_prompts=True data.truncation=error
    MODEL.lora_rank=64 MODEL.lora_alpha=32 MODEL.use_remove_padding=True MODEL.enable_gradient_checkpointing=True
    ACTOR.use_dynamic_bsz=True ACTOR.use_kl_loss=True ACTOR.kl_loss_coef=0.001 ACTOR.kl_loss_type=low_var_kl
    ACTOR.entropy_coeff=0 ACTOR.fsdp_config.param_offload=False ACTOR.fsdp_config.optimizer_offload=False
    ROLLOUT.name=vllm ROLLOUT.gpu_memory_utilization=0.6 ROLLOUT.load_format=safetensors
    ROLLOUT.layered_summon=True ROLLOUT.log_prob_use_dynamic_bsz=True
    REF.log_prob_use_dynamic_bsz=True REF.fsdp_config.param_offload=True
    trainer.balance_batch=True
""")
# dapo/test_dapo_7b_math.sh of verl-recipe. The penalty's lengths are half of the longest answer, and that, as there.
DAPO = settings_of("""
    algorithm.use_kl_in_reward=False algorithm.kl_ctrl.kl_coef=0.0
    data.prompt_key=prompt data.truncation=left
    MODEL.use_remove_padding=True MODEL.enable_gradient_checkpointing=True
    +MODEL.override_config.max_position_embeddings=2048
    ACTOR.use_kl_loss=False ACTOR.kl_loss_coef=0.0 ACTOR.entropy_coeff=0 ACTOR.grad_clip=1.0
    ACTOR.clip_ratio_low=0.2 ACTOR.clip_ratio_high=0.28 ACTOR.clip_ratio_c=10.0 ACTOR.loss_agg_mode=token-mean
    ACTOR.optim.lr_warmup_steps=10 ACTOR.optim.weight_decay=0.1 ACTOR.use_dynamic_bsz=True
    ACTOR.fsdp_config.param_offload=True ACTOR.fsdp_config.optimizer_offload=True
    ROLLOUT.name=vllm ROLLOUT.gpu_memory_utilization=0.80 ROLLOUT.enable_chunked_prefill=True
    ROLLOUT.temperature=1.0 ROLLOUT.top_p=1.0 ROLLOUT.top_k=-1 ROLLOUT.log_prob_use_dynamic_bsz=True
    ROLLOUT.val_kwargs.temperature=1.0 ROLLOUT.val_kwargs.top_p=0.7 ROLLOUT.val_kwargs.top_k=-1
    ROLLOUT.val_kwargs.do_sample=True ROLLOUT.val_kwargs.n=1
    REF.log_prob_use_dynamic_bsz=True REF.fsdp_config.param_offload=True
    reward_model.reward_manager=dapo
    +OVERLONG.enable=True +OVERLONG.len=16 +OVERLONG.penalty_factor=1.0 +OVERLONG.log=False
    +reward_model.reward_kwargs.max_resp_len=32
    trainer.log_val_generations=10 trainer.resume_mode=auto
""")
SHRUNK = [
    *(f"data.train_batch_size={ROWS}", "data.max_prompt_length=512", "data.max_response_length=32"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.optim.lr=2e-4"),
    "actor_rollout_ref.rollout.n=8",
    *("trainer.total_epochs=2", "trainer.val_before_train=False", "trainer.test_freq=-1", "trainer.save_freq=-1"),
]
TEACH = """
import sys
from r3_ext.tiny.warm_start import prepare
sizes = {"rows": int(sys.argv[3]), "val_rows": int(sys.argv[3]), "max_problem_chars": 400}
print(prepare(sys.argv[1], sys.argv[2], steps=60, reflection_share=0.0, **sizes).model)
"""
SUPERVISED = """
import os, sys
from pathlib import Path
from r3_ext.host import supervise
from r3_ext.run.train import PY_EXECUTABLE, interpreter
log, *command = sys.argv[1:]
with supervise.only_local_run() as machine, interpreter("embedded", command, print) as python:
    command = [python, "-m", *command, f"+{PY_EXECUTABLE}={python}"]
    sys.exit(supervise.run(command, dict(os.environ), Path(log), lambda: None, held=(machine,)))
"""


@dataclass
class Ended:
    code: int
    log: str
    folder: Path

    @property
    def rows(self) -> list[dict]:
        files = sorted((self.folder / "rollouts").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    @property
    def rewards(self) -> dict[tuple[str, str], set[float]]:
        """By prompt and answer: what it earned."""
        found = defaultdict(set)
        for row in self.rows:
            found[row["input"], row["output"]].add(row["score"])
        return found


def row_of(source: str, number: int, first: int, second: int) -> dict:
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": PROMPTS[source].format(first, second)}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(first + second)},
        "extra_info": {"split": "train", "index": number},
    }


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> dict[str, Path]:
    """By data source, its file of rows."""
    folder = tmp_path_factory.mktemp("rows")
    pairs = random.Random(1).sample([(a, b) for a in range(2, 40) for b in range(2, 40)], 2 * ROWS)
    files = {}
    for source, part in zip(PROMPTS, (pairs[:ROWS], pairs[ROWS:]), strict=True):
        files[source] = folder / f"{source.partition('/')[0]}.parquet"
        pandas.DataFrame([row_of(source, i, *pair) for i, pair in enumerate(part)]).to_parquet(files[source])
    return files


@pytest.fixture(scope="module")
def model(rows, tmp_path_factory) -> Path:
    """The tiny model, taught right and wrong answers to all rows, as their prompts ask for them."""
    cache, folder = tmp_path_factory.mktemp("taught"), next(iter(rows.values())).parent
    told = subprocess.run(
        [sys.executable, "-c", TEACH, cache, folder, str(ROWS)], check=True, capture_output=True, text=True
    )
    return Path(told.stdout.splitlines()[-1])


@pytest.fixture
def start(rows, model, python, tmp_path):
    """start(module, source, settings) runs an entry point on the rows of a data source to its end."""

    def run(module: str, source: str, settings: list[str]) -> Ended:
        folder = tmp_path / module
        folder.mkdir(exist_ok=True)
        modules = [PLATFORM, *(OWN_MODULES if module == R3 else ())]
        machine = [
            *("--config-dir", str(OWN_CONFIG), "+profile=embedded", f"++{MODULES}='{','.join(modules)}'"),
            *(f"data.{split}_files={rows[source]}" for split in ("train", "val")),
            *(f"actor_rollout_ref.model.path={model}", f"trainer.default_local_dir={folder / 'checkpoints'}"),
            *(f"trainer.rollout_data_dir={folder / 'rollouts'}", f"hydra.run.dir={folder}", "hydra.output_subdir=null"),
        ]
        log = folder / "log"
        log.write_text("")
        env = {**forks.environment(), "VERL_PLATFORM": "cpu"}
        command = [python, "-c", SUPERVISED, log, module, *machine, *settings, *SHRUNK]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, env=env)
        told = log.read_text(errors="replace") or done.stdout + done.stderr
        return Ended(done.returncode, told, folder)

    return run


def followed(settings: list[str], answer: str) -> list[str]:
    """Settings as the answer to a refused start wants them: some left out, others put in."""
    found = re.search(r"^error: .*; leave out (.+); set (.+)$", answer, re.MULTILINE)
    assert found, answer
    left_out = found[1].split(", ")
    kept = [setting for setting in settings if setting.lstrip("+").partition("=")[0] not in left_out]
    return kept + shlex.split(found[2])


NO_BONUS = "reward.reward_kwargs.length_bonus=False"


def test_an_adapter_trains_by_verls_script_and_earns_what_verls_function_gives(start):
    run = start(R3, GSM8K, [*LORA, NO_BONUS])
    assert run.code == 0, run.log[-5000:]
    assert [row["score"] for row in run.rows] == [
        default_compute_score(GSM8K, row["output"], row["gts"]) for row in run.rows
    ]
    assert {row["score"] for row in run.rows} == {0.0, 1.0}


def test_equal_answers_earn_equal_rewards_under_both_entry_points(start):
    """After what R^3 says of the sections that only older versions of verl read."""
    refused = start(R3, DAPO_MATH, [*DAPO, NO_BONUS])
    assert refused.code == 2 and "none of verl's v1 trainers reads these sections" in refused.log, refused.log[-5000:]
    settings = followed(DAPO, refused.log)
    ours = start(R3, DAPO_MATH, [*settings, NO_BONUS])
    assert ours.code == 0, ours.log[-5000:]
    theirs = start(PPO, DAPO_MATH, ["algorithm.adv_estimator=grpo", *settings])
    assert theirs.code == 0, theirs.log[-5000:]

    common = theirs.rewards.keys() & ours.rewards.keys()
    assert {answer: ours.rewards[answer] for answer in common} == {answer: theirs.rewards[answer] for answer in common}
    earned = [reward for answer in common for reward in ours.rewards[answer]]
    assert len(earned) == len(common) > 4
    assert {reward > 0 for reward in earned} == {True, False}, "right and wrong answers occur in both"
    assert any(reward not in (-1, 0, 1) for reward in earned), "some lose a part for their length"
