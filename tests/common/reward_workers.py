"""verl's reward worker on one row, with whichever manager a configuration names."""

from pathlib import Path

import numpy as np
import torch
from hydra import compose, initialize_config_module
from tensordict import TensorDict
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from verl import DataProto
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

EOS = 256
MAX_RESPONSE_LENGTH = 64
OWN = (
    *("reward.reward_manager.source=importlib", "reward.reward_manager.name=R3RewardManager"),
    "reward.reward_manager.module.path=pkg://recipe.common.reward.manager",
)
"""How a configuration names the recipe's manager."""


def write_tokenizer(path: Path) -> Path:
    """One token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token="<eos>", pad_token="<eos>").save_pretrained(path)
    return path


def make_worker(tokenizer, *overrides: str) -> RewardLoopWorker:
    own = [f"actor_rollout_ref.model.path={tokenizer}", f"data.max_response_length={MAX_RESPONSE_LENGTH}"]
    with initialize_config_module("verl.trainer.config", version_base=None):
        return RewardLoopWorker(compose("ppo_trainer", [*own, *overrides]))


def agent_loop_row(worker, response: str, ground_truth, ended: bool = True, **columns) -> DataProto:
    """What verl's AgentLoopWorker._compute_score sends for one response."""
    ids = worker.input_tokenizer.encode(response, add_special_tokens=False) + [EOS] * ended
    prompt, responses = torch.tensor([[1, 2, 3]]), torch.tensor([ids], dtype=torch.int64)
    tokens = torch.cat([prompt, responses], dim=1)
    fields = {"prompts": prompt, "responses": responses, "input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    kwargs = {"data_source": "mine", "reward_model": {"ground_truth": ground_truth, "style": "rule"}} | columns
    non_tensor = {key: np.array([value]) for key, value in kwargs.items()} | {"response_len": np.array([len(ids)])}
    return DataProto(batch=TensorDict(fields, batch_size=1), non_tensor_batch=non_tensor)


def score(worker, *args, **kwargs) -> dict:
    row = agent_loop_row(worker, *args, **kwargs)
    return worker.reward_manager.loop.run_until_complete(worker.compute_score(row))
