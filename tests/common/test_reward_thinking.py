"""`</think>` ends the thinking also where the tokenizer calls it special, so that decoding drops it."""

import asyncio

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from recipe.common.reward.manager import R3RewardManager
from recipe.common.reward.math.answer_text import final_answer
from recipe.common.reward.thinking import END, decode, dropped_end
from recipe.common.reward.truths import OWN_MANAGER
from verl import DataProto


def tokenizer(*added: AddedToken, unknown: str | None = None) -> PreTrainedTokenizerFast:
    """One token per byte, and those that are added."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[])
    bytes_only = Tokenizer(model)
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token="<eos>", unk_token=unknown)
    made.add_tokens(list(added))
    return made


SPECIAL = {
    "special": tokenizer(AddedToken(END, special=True)),
    "plain": tokenizer(AddedToken(END, special=False)),
    "letters": tokenizer(),
    "unknown": tokenizer(unknown="<unk>"),
}
CASES = [
    (r"\boxed{5}</think>It is 5.", None),
    (r"\boxed{5}</think>It is \boxed{6}.", "6"),
    (r"\boxed{5}</think>\boxed{}", None),
    (r"\boxed{5} so it is", "5"),  # cut off in its thoughts
    (r"\boxed{4}</think>\boxed{5}</think>", None),
    (r"\boxed{4}</think>\boxed{5}</think>\boxed{6}<eos>", "6"),
    ("</think>", None),
    ("", None),
]


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("response, answer", CASES)
def test_what_was_thought_is_no_answer_whatever_the_tokenizer_calls_special(kind, response, answer):
    made = SPECIAL[kind]
    tokens = made.encode(response, add_special_tokens=False)
    end = dropped_end(made)
    assert (end is not None) == (kind == "special")
    assert final_answer(decode(made, tokens, end)) == answer


def test_decoding_alone_would_take_the_thought_for_the_answer():
    made = SPECIAL["special"]
    assert final_answer(made.decode(made.encode(CASES[0][0]), skip_special_tokens=True)) == "5"


@pytest.mark.parametrize("kind", ["special", "plain"])
@pytest.mark.parametrize("response, acc", [(CASES[0][0], 0.0), (r"\boxed{6}</think>It is \boxed{5}.<eos>", 1.0)])
def test_the_reward_is_that_of_the_answer(kind, response, acc):
    manager = {"source": "importlib", "name": "R3RewardManager", "module": {"path": OWN_MANAGER}}
    config = OmegaConf.create({"data": {"max_response_length": 64}, "reward": {"reward_manager": manager}})
    manager = R3RewardManager(config, SPECIAL[kind], None)
    ids = torch.tensor([SPECIAL[kind].encode(response, add_special_tokens=False)])
    truth = {"reward_model": np.array([{"ground_truth": "5"}]), "response_len": np.array([ids.shape[1]])}
    row = DataProto(batch=TensorDict({"responses": ids}, batch_size=1), non_tensor_batch=truth)
    assert asyncio.run(manager.run_single(row))["reward_extra_info"]["acc"] == acc
