"""The weight of a replayed failure: by hand, what it does to the gradient, and bad log-probs."""

import math

import pytest
import torch

from recipe.r3.off_policy import taper


def test_taper_by_hand():
    found = taper(torch.tensor([0.1, 0.4, 0.2]).log(), torch.tensor([0.2, 0.2, 0.2]).log())
    assert found.tolist() == pytest.approx([0.5, 1, 1])


@pytest.mark.parametrize("probability", [1e-2, 1e-4, 1e-8])
def test_a_tapered_failure_pushes_less_the_less_likely_it_became(probability):
    """Gradient at the logits of a token whose probability was 0.5 when it was sampled: without the factor it has length
    1 or more however unlikely the token is by now, with it at most p / 0.5 times as much."""
    rest = math.log((1 - probability) / 3)
    logits = torch.tensor([math.log(probability), rest, rest, rest], dtype=torch.float64, requires_grad=True)
    log_prob = torch.log_softmax(logits, -1)[:1]
    weight = taper(log_prob.detach(), torch.tensor([0.5]).log())
    (plain,) = torch.autograd.grad(log_prob.sum(), logits, retain_graph=True)
    (tapered,) = torch.autograd.grad((weight * log_prob).sum(), logits)
    assert plain.norm() > 1
    assert tapered.norm() == pytest.approx((plain.norm() * probability / 0.5).item(), rel=1e-4)


def test_taper_takes_what_a_bad_log_prob_can_be():
    assert taper(torch.tensor([-1e4, 0.0]), torch.tensor([0.0, -1e4])).tolist() == [0, 1]
    assert taper(torch.tensor([-1.0], dtype=torch.bfloat16), torch.tensor([-1.0], dtype=torch.float16)).tolist() == [1]
