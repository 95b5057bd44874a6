"""What is told of the choice of PPO's rate is what its record gives, by the plan's rule."""

import numpy as np

from r3_ext.study import record
from r3_ext.study.outcome import mean_accuracy
from tests.benchmarks.rivals import RESULTS, design_of

RECORD = RESULTS / "rrl_rate"


def test_the_rate_is_the_first_at_which_ppo_gains_enough():
    text, curves = (RECORD / "README.md").read_text(), record.read_curves(RECORD)
    gains = []
    for world, curve in sorted(curves["at_2e-4/ppo"].items()):
        first, last = curve[1][0], curve[1][-1]
        gains.append(mean_accuracy(curve, 60000) - first)
        assert f"| world {world} | {first:.3f} | {gains[-1]:+.3f} | {last:.3f} |" in text
    assert len(gains) == 2 and np.mean(gains) >= 0.03
    assert f"the gain is {np.mean(gains):.3f} on average" in text
    rates = [one.overrides for one in design_of("rrl_worlds").experiments]
    assert all("actor_rollout_ref.actor.optim.lr=2e-4" in overrides for overrides in rates)
