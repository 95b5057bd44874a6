"""The forecast of the ranking reward: pairs by hand, entropies against a slow loop, and known rewards."""

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from r3_ext.evaluate import rank


def test_pairs_by_hand():
    reward, correct = np.array([0.5, 0.2, 0.2]), np.array([True, True, False])
    assert rank.auc_pairs(reward, correct) == (1.5, 2)
    assert rank.auc_pairs(reward, ~correct) == (0.5, 2)


@pytest.mark.parametrize("sign,expected", [(1, 1.0), (-1, 0.0), (0, 0.5)])
def test_a_reward_that_follows_reverses_or_ignores_success(sign, expected):
    rng = np.random.default_rng(0)
    groups = []
    for _ in range(20):
        correct = np.array([True, True, False, False, False])[rng.permutation(5)]
        groups.append({"reward": sign * correct.astype(float), "correct": correct})
    found = rank.foresight(groups)
    assert found["auc"] == [expected] * 3 and (found["pairs"], found["attempts"]) == (120, 100)
    assert found["success_share"] == pytest.approx(0.4)


def test_the_interval_holds_one_half_when_rewards_are_random():
    rng = np.random.default_rng(1)
    groups = [{"reward": rng.random(8), "correct": np.arange(8) < 3} for _ in range(60)]
    value, low, high = rank.foresight(groups)["auc"]
    assert low < 0.5 < high and low < value < high and high - low < 0.2


def test_entropies_equal_those_of_a_loop_that_reads_token_by_token(monkeypatch):
    monkeypatch.setattr(rank, "CHUNK", 3)
    torch.manual_seed(0)
    settings = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    model = Qwen2ForCausalLM(Qwen2Config(**settings, num_attention_heads=2, num_key_value_heads=2)).eval()
    prompt, response = [3, 1, 4, 1], [5, 9, 2, 6, 5, 3, 5]
    expected = []
    for length in range(len(response)):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response[:length]])).logits[0, -1]
        share = logits.softmax(-1)
        expected.append(float(-(share * share.log()).sum()))
    assert rank.entropies(model, prompt, response).tolist() == pytest.approx(expected, rel=1e-4)
