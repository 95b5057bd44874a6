"""The arms of a study: what is compared, each as a method of `r3 run` and overrides.

All arms share model, data, reward, profile and budget: of generated tokens, or of turns where they train on sessions.
The length bonus belongs to the reward and is on for every arm.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from r3_ext.recipes import recipe_of

MECHANISMS = {"ccr": "replay", "isr": "reflection", "serr": "ranking"}


@dataclass(frozen=True)
class Arm:
    title: str
    method: str
    overrides: tuple[str, ...] = ()
    embedded: tuple[str, ...] = ()
    """Overrides on the embedded profile only."""
    ended: str = ""
    """Commit at which it was run last: what it needs is no part of R^3 any more. Records of it can be read."""

    @property
    def settings(self) -> tuple[str, ...]:
        """Its overrides.

        Raises:
            ValueError: it has ended.
        """
        if self.ended:
            raise ValueError(f"the arm {self.title!r} has ended: it can be trained at commit {self.ended} only")
        return self.overrides


def _only(*kept: str) -> tuple[str, ...]:
    """Overrides that turn the other mechanisms off."""
    return tuple(f"algorithm.r3.{key}.enable=False" for name, key in MECHANISMS.items() if name not in kept)


def _replay(**settings: str) -> tuple[str, ...]:
    return tuple(f"algorithm.r3.replay.{key}={value}" for key, value in settings.items())


def _asked(when: str, ask: str = "reflection") -> tuple[str, ...]:
    return f"algorithm.r3.reflection.when={when}", f"algorithm.r3.reflection.ask={ask}"


ARMS = {
    "grpo": Arm("GRPO", "grpo"),
    "grpo_live": Arm("GRPO, equal rewards not counted in the loss", "grpo", ("algorithm.adv_estimator=grpo_live",)),
    "grpo_2pass": Arm("GRPO, two passes over each batch", "grpo", ("actor_rollout_ref.actor.ppo_epochs=2",)),
    # About every fourth group is mixed: a quarter of the batch gives it as many updates for the same tokens. The ledger
    # counts them.
    "dapo": Arm(
        "DAPO (dynamic sampling, clip-higher)",
        "dapo",
        embedded=("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
    ),
    "ngrpo": Arm("NGRPO", "ngrpo"),
    "rl_zvp": Arm("RL-ZVP", "rl_zvp"),
    # What LTE compares itself with: is it the reflection, or are it the answers?
    "grpo_extra": Arm("GRPO, further answers to all-wrong groups", "grpo_extra"),
    # GRPO with what is tuned for R^3: what the mechanisms add is not to be mixed up with a learning rate.
    "none": Arm("R^3 with all three off", "r3", _only()),
    "ccr": Arm("+CCR", "r3", _only("ccr")),
    # Does it matter that it is the same prompt?
    "any_prompt": Arm("Replay of right answers to any prompt", "r3", (*_only("ccr"), *_replay(outcome="any_prompt"))),
    "isr": Arm("+ISR", "r3", _only("isr")),
    "serr": Arm("+SERR", "r3", _only("serr")),
    "r3": Arm("R^3, all three", "r3"),
    "r3_paper": Arm("R^3, as literally as the paper allows", "r3_paper"),
    "no_ccr": Arm("R^3 without CCR", "r3", _only("isr", "serr")),
    "no_isr": Arm("R^3 without ISR", "r3", _only("ccr", "serr")),
    "no_serr": Arm("R^3 without SERR", "r3", _only("ccr", "isr")),
    "whole": Arm("R^3, every row of a rescued group trained by eq. (3)", "r3", _replay(trains="all")),
    "both": Arm("R^3, every row trained, failures replayed, too", "r3", _replay(trains="all", outcome="both")),
    "failures": Arm("R^3, every row trained, failures replayed only", "r3", _replay(trains="all", outcome="wrong")),
    "next_epoch": Arm("R^3, only stored answers replayed", "r3", _replay(same_step="False")),
    "contrast": Arm("R^3, replayed answers in mean and std only", "r3", _replay(trains="fresh")),
    "more": Arm("R^3, two right answers replayed to a group", "r3", _replay(k="2")),
    "next_visit": Arm("R^3, all-wrong groups asked at the next visit", "r3", _asked("next_visit")),
    "next_step": Arm("R^3, all-wrong groups asked in the next step", "r3", _asked("next_step")),
    "at_once": Arm("R^3, all-wrong groups asked at once", "r3", _asked("at_once")),
    "at_once_plain": Arm("R^3, all-wrong groups asked at once, plainly", "r3", _asked("at_once", "plain")),
    "at_once_adaptive": Arm("R^3, all-wrong groups asked at once, adaptively", "r3", _asked("at_once", "adaptive")),
    "by_way": Arm("R^3, asked ahead only where reflection is drawn", "r3", ended="7000ada"),
    # No problem is ever known well enough.
    "unplanned": Arm(
        "R^3, nothing asked ahead",
        "r3",
        ("algorithm.r3.reflection.min_attempts=1000000", "algorithm.r3.reflection.rounds=null"),
    ),
    "restart": Arm("R^3, known problems restarted from a part of a right answer", "r3", _asked("at_once", "restart")),
    "reflected": Arm("R^3, only what reflection found is replayed", "r3", ended="995577c"),
    "sparing": Arm("R^3, all-wrong groups asked at once, sparingly", "r3", ended="62b5f38"),
    "wrong_content": Arm("+CCR with answers to other problems", "r3", ended="cde174c"),
    "serr_literal": Arm(
        "+SERR, literally",
        "r3",
        (*_only("serr"), "algorithm.r3.ranking.norm_by_std=True", "algorithm.r3.ranking.finished_reward=zero"),
    ),
}


# verl's own GRPO takes more optimizer steps the longer its sessions are: this one takes as many as the others.
GRPO_ON_SESSIONS = "algorithm.hgpo.step_weight=0", "algorithm.hgpo.episode_weight=1"
ARMS |= {
    "grpo_sessions": Arm("GRPO over sessions", "hgpo", GRPO_ON_SESSIONS),
    "gigpo": Arm("GiGPO", "gigpo"),
    "hgpo": Arm("HGPO", "hgpo"),
    "hgpo_release": Arm("HGPO, as its published code", "hgpo_release"),
}
BY_TRIES = "algorithm.rrl.restarts.temperature=null"
ARMS |= {
    "ppo": Arm("PPO", "ppo"),
    "rrl_none": Arm("RRL-style without restarts, which is PPO", "rrl", ("algorithm.rrl.restarts.share=0",)),
    "rrl": Arm("RRL-style", "rrl"),
    "rrl_random": Arm(
        "RRL-style, cut and drawn at random", "rrl", ("algorithm.rrl.states.failed_cut=random", BY_TRIES)
    ),
    # A restart also asks a hard problem once more: does that do it?
    "rrl_again": Arm(
        "RRL-style, hard problems from their start", "rrl", ("algorithm.rrl.states.failed_cut=start", BY_TRIES)
    ),
    "rrl_right": Arm("RRL-style, states of right answers", "rrl", ("algorithm.rrl.states.origin=right", BY_TRIES)),
}
TOKENS, TURNS = "tokens", "turns"
"""What a budget counts."""
WORDS = {TOKENS: "generated tokens", TURNS: "turns"}
SCORES = {TOKENS: "Pass@1", TURNS: "success"}
"""What a validation is judged by."""


def unit_of(arms: Iterable[str]) -> str:
    """What the budget of these arms counts: turns where all of them train on sessions."""
    known = [ARMS[arm] for arm in arms if arm in ARMS]
    return TURNS if known and all(recipe_of(arm.method).world for arm in known) else TOKENS


def title(arm: str) -> str:
    """An arm of another version is called by its name."""
    return ARMS[arm].title if arm in ARMS else arm


DEFAULT = ("grpo", "dapo", "ccr", "isr", "serr", "r3")
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
EMBEDDED_SESSIONS = EMBEDDED[4:]
"""Those of sessions, whose world says how many games there are and how they are validated on."""


def embedded(chosen: Iterable[str]) -> tuple[str, ...]:
    """Settings of these arms on the embedded profile."""
    return EMBEDDED_SESSIONS if unit_of(chosen) == TURNS else EMBEDDED
