"""The table of verl's methods that are extended is complete and right, and the engine is the one that verl finds."""

from types import SimpleNamespace

import datasets
import pytest
import torch
from extended import extended
from omegaconf import OmegaConf
from transformers import AutoConfig, Qwen2Config, Qwen2ForCausalLM

from recipe.common.prompts import Prompts
from recipe.common.restart.agent_loop import RestartAgentLoop
from recipe.common.verl_hooks import TRAINER_HOOKS, check_hooks
from recipe.rrl import engine, rrl_trainer
from recipe.rrl.config.rrl_config import RestartsConfig, RRLConfig
from recipe.rrl.rrl_trainer import RRLColocateAsync, RRLMixin, RRLSeparateAsync, RRLTrainer
from verl.utils.model import get_hf_auto_model_class
from verl.workers.engine import EngineRegistry

HOOKS = {**TRAINER_HOOKS, **RRLMixin.HOOKS}


@pytest.mark.parametrize("cls", [RRLTrainer, RRLColocateAsync, RRLSeparateAsync, RestartAgentLoop, engine.ValueEngine])
def test_every_method_that_is_extended_is_in_the_table(cls):
    assert extended(cls) <= {name for methods in HOOKS.values() for name in methods}


def test_the_pinned_verl_has_every_method_as_the_table_says():
    check_hooks(HOOKS)


def kept(query_id: str) -> SimpleNamespace:
    return SimpleNamespace(id=1, query_id=query_id, tokens=torch.ones(1))


def test_a_state_is_valued_behind_the_prompt_that_a_rollout_worker_has_which_verl_cuts_from_the_left(monkeypatch):
    tokenizer = SimpleNamespace(apply_chat_template=lambda messages, **_: [ord(char) for char in messages])
    rows = datasets.Dataset.from_dict({name: ["abc", "abcdef"] for name in ("query_id", "prompt")})
    prompts = Prompts(rows, "prompt", tokenizer, {}, max_length=4)
    valued = []
    trainer = SimpleNamespace(
        rrl=RRLConfig(collect_after=0, restarts=RestartsConfig(share=1 / 16, after=0)),
        restarts=SimpleNamespace(draw=lambda number, purpose, step: [kept("abc"), kept("abcdef")]),
        config=OmegaConf.create(
            {"data": {"train_batch_size": 16}, "actor_rollout_ref": {"rollout": {"temperature": 1.0}}}
        ),
        **{"global_steps": 5, "prompts": prompts, "critic_wg": None, "tokenizer": SimpleNamespace(eos_token_id=0)},
    )
    monkeypatch.setattr(rrl_trainer, "values_of", lambda critic, prompts, *_: valued.extend(prompts) or [(0, 0)] * 2)
    RRLMixin._value_anew(trainer, SimpleNamespace(revalue=lambda found, step: None))
    assert valued[0] == [97, 98, 99]
    assert valued[1] == [99, 100, 101, 102]


@pytest.mark.parametrize("share, number", [(0.25, 16), (0.01, 4)])
def test_states_are_valued_anew_however_few_restarts_there_are(share, number):
    asked = []
    trainer = SimpleNamespace(
        rrl=RRLConfig(collect_after=0, restarts=RestartsConfig(share=share, after=0)),
        restarts=SimpleNamespace(draw=lambda number, purpose, step: asked.append(number)),
        config=OmegaConf.create({"data": {"train_batch_size": 16}}),
        global_steps=5,
    )
    RRLMixin._value_anew(trainer, None)
    assert asked == [number]


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
def test_value_models_are_made_by_the_recipes_engine(strategy):
    assert EngineRegistry._engines["value_model"][strategy]["cuda", "nvidia"] is engine.ValueEngine


def test_a_value_model_has_the_attention_that_is_set_a_head_of_its_seed_and_leaves_all_as_it_was(tmp_path):
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    Qwen2ForCausalLM(Qwen2Config(vocab_size=16, num_key_value_heads=1, **small)).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, attn_implementation="eager")
    config.update(engine.ONE_VALUE)
    called, heads = SimpleNamespace(model_type="value_model", hf_config=config), []
    for seed in (0, 0, 1):
        with engine.called_token_classifier(called), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            assert called.model_type == "language_model"
            model = get_hf_auto_model_class(config).from_pretrained(tmp_path, config=config)
            assert type(model).__name__ == config.architectures[0] == "Qwen2ForTokenClassification"
        assert model.config._attn_implementation == "eager" and model.score.out_features == 1
        heads.append(model.score.weight.detach())
    assert (called.model_type, config.architectures) == ("value_model", ["Qwen2ForCausalLM"])
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])
