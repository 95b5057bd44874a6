"""RRL-style replay through the real trainer: verl's PPO as a special case, what the workers computed, and resume."""

import random
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from omegaconf import OmegaConf
from transformers import AutoModelForTokenClassification, AutoTokenizer

from recipe.common.config.verl_rules import ENVIRONMENT, MODULES
from recipe.common.prompts import Prompts
from recipe.common.query_ids import with_query_ids
from recipe.common.rows import RESTART_UID

from . import seen_gradients
from .conftest import STEPS, Run, assert_equal_weights, skip_overrides, weights
from .crash import EVERYTHING, Crash
from .equal_runs import assert_equal_runs

pytestmark = pytest.mark.integration

OURS = "r3_ext.cpu.plugin", "recipe.rrl.rrl_trainer", "recipe.common.restart.agent_loop"
ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
CRITIC = [
    *("algorithm.adv_estimator=gae", "critic.enable=True", "critic.strategy=fsdp2", "critic.optim.lr=1e-3"),
    *(f"critic.model.path='${{{MODEL}.path}}'", "critic.model.use_remove_padding=False", "critic.fsdp.seed=0"),
    *("critic.model.enable_gradient_checkpointing=False", "+critic.model.override_config.attn_implementation=sdpa"),
    *("critic.fsdp.use_torch_compile=False", "+critic.ppo_infer_max_token_len_per_gpu=16384"),
    "+critic.fsdp.mixed_precision={param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}",
]
"""For verl's own trainer what recipe/rrl/config/rrl.yaml has for the recipe's."""
SAME = (
    *("actor/pg_loss", "actor/grad_norm", "actor/ppo_kl", "critic/vf_loss", "critic/grad_norm", "critic/values/mean"),
    *("critic/returns/mean", "critic/advantages/max", "critic/vf_explained_var"),
)
EARLY = [
    # One update a step: in a second one the clipped objective rightly gives some tokens no gradient.
    *("actor_rollout_ref.actor.ppo_mini_batch_size=16", "critic.ppo_mini_batch_size=16"),
    # States from the first step on, of every failed answer that has a cut, and half of the prompts from the second on.
    *("algorithm.rrl.collect_after=0", "algorithm.rrl.restarts.after=0", "algorithm.rrl.restarts.share=0.5"),
    *("algorithm.rrl.states.floor=-9", "algorithm.rrl.states.admit=1", "algorithm.rrl.states.room=0.25"),
    *("algorithm.rrl.states.origin=both", "algorithm.rrl.states.hard=0.75", "algorithm.rrl.states.max_per_query=2"),
]


def modules(*names: str) -> str:
    return f"{MODULES}='{','.join(names)}'"


def test_without_restarts_it_is_verls_ppo_bit_for_bit(train, recording):
    settings = [f"trainer.save_freq={STEPS}", *skip_overrides(recording)]
    # verl's trainer as it comes, with the engine without which it has no value model on a machine without a GPU.
    own = [*CRITIC, "trainer.v1.trainer_mode=sync", modules("r3_ext.cpu.plugin", "recipe.rrl.engine")]
    verls = train("grpo", "verls_ppo", *settings, *own)
    ours = train("ppo", "ppo", *settings, "data.gen_batch_size=16")
    assert len(verls.rows) == len(ours.rows) == STEPS
    for theirs, row in zip(verls.rows, ours.rows, strict=True):
        assert {key: row[key] for key in SAME} == {key: theirs[key] for key in SAME}
    assert all(row["critic/grad_norm"] > 0 and row["actor/grad_norm"] > 0 for row in verls.rows)
    for role in ("actor", "critic"):
        assert_equal_weights(verls, ours, STEPS, role)
    assert not (ours.folder / "states.sqlite").exists()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """Filled by the run `restarts`."""
    return tmp_path_factory.mktemp("restarts")


@pytest.fixture(scope="module")
def gradients(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("gradients")


@pytest.fixture(scope="module")
def restarts(train, recorded, gradients) -> Run:
    """A run with restarts in bf16, as on GPUs, its rollouts written down, and what the workers computed."""
    seen = [modules(*OURS, seen_gradients.__name__), f"+{ENVIRONMENT}.{seen_gradients.FOLDER}={gradients}"]
    in_bf16 = f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16"
    return train("rrl", "restarts", *EARLY, in_bf16, "trainer.save_freq=1", *skip_overrides(recorded), *seen)


def test_a_share_of_the_prompts_begins_at_states_and_is_counted_apart(restarts):
    first, *later = restarts.rows
    assert first["groups/total"] == 16 and "restart/rows" not in first and first["states/added"] > 0
    for row in later:
        groups = row["restart/groups/total"]
        assert 0 < groups <= 8 and row["groups/total"] + groups == 16
        assert row["restart/rows"] == 4 * groups and row["fresh/rows"] == 64 - 4 * groups
        assert row["generated/tokens"] == row["fresh/tokens"] + row["restart/tokens"] == row["trained/tokens"]
        whole = row["restart/response_length/mean"] * row["restart/rows"]
        assert row["restart/tokens"] + row["restart/prefix_tokens"] == pytest.approx(whole)
        assert row["response_length/mean"] == pytest.approx(row["fresh/response_length/mean"])
        assert row["restart/prefix_log_prob"] < 0


@pytest.mark.parametrize("output", ["log_probs", "values"])
def test_no_gradient_reaches_a_prefix_and_one_reaches_the_cut(restarts, gradients, output):
    rows = [row for file in gradients.glob(f"{output}_*.pt") for row in torch.load(file, weights_only=False)]
    own = [row for row in rows if row["uid"].startswith(RESTART_UID)]
    assert len(own) == sum(row.get("restart/rows", 0) for row in restarts.rows) > 0
    assert all(row["elsewhere"] == 0 for row in rows)
    for row in own:
        cut = int(row["mask"].argmax())
        assert cut > 0 and not row["mask"][:cut].any() and row["mask"][cut:].all()
        assert (row["gradients"][:cut] == 0).all() and row["gradients"][cut] != 0


def test_values_of_states_are_those_of_the_critic_in_the_checkpoint(restarts):
    """By transformers alone, of the states that the last step looked at anew; in fp32, the run's critic is in bf16."""
    config = OmegaConf.load(restarts.folder / "config.yaml")
    folder, data = config.actor_rollout_ref.model.path, config.data
    tokenizer = AutoTokenizer.from_pretrained(folder)
    critic = AutoModelForTokenClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
    critic.load_state_dict(weights(restarts, STEPS, "critic"))
    rows = with_query_ids(Dataset.from_parquet(data.train_files), data.prompt_key)
    prompts = Prompts(rows, data.prompt_key, tokenizer, {}, data.max_prompt_length)
    with closing(sqlite3.connect(f"file:{restarts.folder / 'states.sqlite'}?mode=ro", uri=True)) as db:
        found = db.execute(
            "SELECT query_id, tokens, r.value, r.start_value FROM revalued r JOIN states s ON s.id = r.state_id "
            f"JOIN payloads p ON p.id = s.id WHERE r.step = {STEPS}"
        ).fetchall()
    assert len(found) > 1 and len({value for *_, value, _ in found}) > 1
    for query_id, payload, *values in found:
        prompt = prompts[query_id]
        ids = torch.cat([prompt, torch.tensor(np.frombuffer(zlib.decompress(payload), "<i4").astype(int))])
        with torch.no_grad():
            ours = critic.eval()(ids[None]).logits[0, :, 0]
        assert [ours[-1].item(), ours[len(prompt) - 1].item()] == pytest.approx(values, abs=5e-3)


def kept(run: Run) -> list:
    """What the state buffer holds, by content."""
    with closing(sqlite3.connect(f"file:{run.folder / 'states.sqlite'}?mode=ro", uri=True)) as db:
        named = "query_id, origin, cut, length, step, aim, value, start_value, added, hex(digest)"
        states = db.execute(f"SELECT {named}, evicted FROM states WHERE NOT abandoned ORDER BY {named}").fetchall()
        tries = db.execute("SELECT query_id, hex(digest), step, tries, successes FROM attempts ORDER BY 1, 2, 3")
        values = db.execute(
            "SELECT query_id, hex(digest), r.step, r.value, r.start_value FROM revalued r "
            "JOIN states s ON s.id = r.state_id WHERE NOT abandoned ORDER BY 1, 2, 3"
        )
        return [states, tries.fetchall(), values.fetchall()]


def test_a_run_that_was_killed_with_states_stored_goes_on_exactly(train, restarts, recorded, cache, tmp_path):
    settings = [*EARLY, "trainer.save_freq=1", *skip_overrides(recorded)]
    whole = train("rrl", "rrl_whole", *settings)
    assert len(whole.rows) == STEPS and whole.rows[-1]["restart/rows"] == restarts.rows[-1]["restart/rows"]
    victim = Crash(tmp_path, "victim", cache, settings, random.Random(0), patience=120, method="rrl")
    assert victim.strike(EVERYTHING, "checkpoint")
    finished = victim.finish()
    assert finished.summary["starts"] == 2
    assert_equal_runs(whole, finished, STEPS, kills=1)
    assert_equal_weights(whole, finished, STEPS, "critic")
    theirs, ours = kept(whole), kept(finished)
    assert ours == theirs and all(theirs)
