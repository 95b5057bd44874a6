"""The arms of a study: what is compared, each as a method of `r3 run` and overrides.

All arms share model, data, reward, profile and budget of generated tokens. The length bonus belongs to the reward and
is on for every arm but one.
"""

from dataclasses import dataclass

MECHANISMS = {"ccr": "replay", "isr": "reflection", "serr": "ranking"}


@dataclass(frozen=True)
class Arm:
    title: str
    method: str
    overrides: tuple[str, ...] = ()
    embedded: tuple[str, ...] = ()
    """Overrides on the embedded profile only."""


def _only(*kept: str) -> tuple[str, ...]:
    """Overrides that turn the other mechanisms off."""
    return tuple(f"algorithm.r3.{key}.enable=False" for name, key in MECHANISMS.items() if name not in kept)


ARMS = {
    "grpo": Arm("GRPO", "grpo"),
    # One of its steps generates as much as four of the others.
    "dapo": Arm("DAPO (dynamic sampling, clip-higher)", "dapo", embedded=("trainer.test_freq=1",)),
    "ccr": Arm("+CCR", "r3", _only("ccr")),
    "isr": Arm("+ISR", "r3", _only("isr")),
    "serr": Arm("+SERR", "r3", _only("serr")),
    "r3": Arm("R^3, all three", "r3"),
    "r3_paper": Arm("R^3, as literally as the paper allows", "r3_paper"),
    "r3_no_bonus": Arm("R^3 without the length bonus", "r3", ("reward.reward_kwargs.length_bonus=False",)),
    "ccr_random": Arm(
        "control: +CCR from random other problems",
        "r3",
        (*_only("ccr"), "algorithm.r3.replay.other_queries=True"),
    ),
    "no_ccr": Arm("R^3 without CCR", "r3", _only("isr", "serr")),
    "no_isr": Arm("R^3 without ISR", "r3", _only("ccr", "serr")),
    "no_serr": Arm("R^3 without SERR", "r3", _only("ccr", "isr")),
    "k_4": Arm("R^3, k = 4", "r3", ("algorithm.r3.replay.k=4",)),
    "alpha_2": Arm("R^3, alpha = 2", "r3", ("algorithm.r3.replay.alpha=2",)),
    "tau_0.5": Arm("R^3, tau = 0.5", "r3", ("algorithm.r3.reflection.threshold=0.5",)),
    "p_0.05": Arm("R^3, p = 0.05", "r3", ("algorithm.r3.ranking.top_ratio=0.05",)),
    "own_prompt": Arm(
        "R^3, replay under the same prompt only", "r3", ("algorithm.r3.replay.reflected_to_plain=False",)
    ),
}
DEFAULT = ("grpo", "dapo", "ccr", "isr", "serr", "r3", "r3_no_bonus", "ccr_random")
FIGURES = {
    "methods": ("R^3, GRPO and DAPO at equal generated tokens", ("grpo", "dapo", "r3", "r3_paper")),
    "mechanisms": ("GRPO plus one mechanism", ("grpo", "ccr", "r3", "isr", "serr", "ccr_random")),
    "removals": ("R^3 minus one part", ("no_ccr", "no_isr", "r3", "no_serr", "r3_no_bonus")),
    "settings": ("R^3 with other settings", ("k_4", "alpha_2", "r3", "tau_0.5", "own_prompt", "p_0.05")),
}
"""File name, title and arms of the figures of a study; an arm's place is its colour, R^3 has the third."""
EMBEDDED = (
    # Two steps an epoch: replay and reflection have a history after the first.
    "data.train_max_samples=32",
    "actor_rollout_ref.rollout.val_kwargs.n=2",
    "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
    "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
    "trainer.total_training_steps=1000",
    "trainer.total_epochs=1000",
    "trainer.test_freq=5",
    "trainer.val_before_train=True",
    "trainer.save_freq=-1",
)
"""Settings of a study on the embedded profile: minutes per cell on two cores."""
