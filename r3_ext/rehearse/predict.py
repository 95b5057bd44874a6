"""From the measured steps of a rehearsal to the whole run, and to the settings that fit: pure functions."""

from collections.abc import Callable
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from r3_ext.settings import sizing
from recipe.common.config.lengths import longest_row
from recipe.common.trainer.stop import last_step

UTILIZATION = "actor_rollout_ref.rollout.gpu_memory_utilization"
TOKENS = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
OFFLOAD = "actor_rollout_ref.actor.fsdp_config.offload_policy"


@dataclass(frozen=True)
class Course:
    """How often a whole run does what."""

    steps: int
    first: int
    """Steps of the first epoch, in which no problem has a history."""
    validations: int
    checkpoints: int

    @classmethod
    def of(cls, config: DictConfig, problems: int) -> "Course":
        """The course of a run on so many problems.

        5 epochs of 128 problems in batches of 16, test_freq 10 and save_freq 20: 40 steps, 8 of them first ones,
        5 validations with the one before training, 2 checkpoints.
        """
        trainer = config.trainer
        in_epoch = max(1, problems // config.data.train_batch_size)
        steps = last_step(trainer, in_epoch)

        def times(frequency: int) -> int:
            """verl does it every so many steps and after the last one."""
            return -(-steps // frequency) if frequency > 0 else 0

        before = int(bool(trainer.get("val_before_train", True)))
        return cls(steps, min(steps, in_epoch), times(trainer.test_freq) + before, times(trainer.save_freq))


@dataclass(frozen=True)
class Seconds:
    """What a rehearsal measured."""

    start: float
    """From the command to the first step, and what that one took longer than others."""
    first: float
    later: float
    worst: float
    grpo: float | None
    """None where nothing was rehearsed beside it."""
    validation: float
    checkpoint: float
    end: float
    """From the last step to the end of the command."""


def run_seconds(course: Course, seconds: Seconds) -> float:
    """The whole run, should its steps stay as typical as the measured ones."""
    steps = course.first * seconds.first + (course.steps - course.first) * seconds.later
    return steps + around_steps(course, seconds)


def worst_seconds(course: Course, seconds: Seconds) -> float:
    """The whole run, should every step be the worst one."""
    return course.steps * seconds.worst + around_steps(course, seconds)


def grpo_seconds(course: Course, seconds: Seconds) -> float | None:
    """The same steps of verl's GRPO, if they were rehearsed."""
    return None if seconds.grpo is None else course.steps * seconds.grpo + around_steps(course, seconds)


def around_steps(course: Course, seconds: Seconds) -> float:
    whole = seconds.start + seconds.end
    return whole + course.validations * seconds.validation + course.checkpoints * seconds.checkpoint


def history_bytes(config: DictConfig, steps: int, problems: int, rows: float, row_bytes: float) -> float:
    """Most bytes of samples that can be drawn, after `steps` steps that store `rows` rows of so many bytes each.

    Bounded by max_per_outcome of each problem, prompt variant and outcome, and by max_gib.
    """
    history = config.algorithm.r3.history
    variants = 2 if config.algorithm.r3.reflection.enable else 1
    kept = problems * variants * 2 * history.max_per_outcome * row_bytes
    return min(steps * rows * row_bytes, kept, history.max_gib * 2**30)


def tokens_that_fit(budget: float, before: float, peak: float, tokens: int, least: int) -> int | None:
    """The largest micro-batch, a multiple of 256 tokens, whose peak is within the budget; None where none is.

    What comes on top of the memory `before` the phase grows with the tokens of a micro-batch. 10 before, 30 with
    16,384 tokens, budget 25: 12,288.

    Args:
        budget, before, peak: GiB.
        tokens, least: of the measured micro-batch, and of the longest row, which one has to hold.
    """
    if peak <= budget:
        return tokens
    share = (budget - before) / (peak - before) if peak > before else 0.0
    found = int(tokens * share) // 256 * 256
    return found if found >= least else None


def computed_fit(config: DictConfig, architecture: sizing.Architecture, memory: float) -> list[str] | None:
    """The overrides, as few and as mild as possible, with which the computed sizing fits; None where none do."""
    actor, longest = config.actor_rollout_ref.actor, longest_row(config)

    def planned(*overrides: str) -> sizing.Plan:
        changed = OmegaConf.merge(config, OmegaConf.from_dotlist(list(overrides)))
        return sizing.plan(changed, architecture, memory)

    def largest(values: list, key: str, fits: Callable[[sizing.Plan], bool], *given: str) -> list[str]:
        """The override of the first of the values that fits; none where the present one does."""
        if fits(planned(*given)):
            return []
        return next(([f"{key}={value}"] for value in values if fits(planned(*given, f"{key}={value}"))), [])

    def rolls_out(plan: sizing.Plan) -> bool:
        return plan.rollout <= memory and plan.cache_tokens >= longest

    shares = [round(0.05 * step, 2) for step in range(19, 1, -1)]
    start = actor.ppo_max_token_len_per_gpu // 256 * 256
    tokens = [longest, *range(-(-longest // 256) * 256, start, 256)][::-1] if actor.use_dynamic_bsz else []
    for offload in ([], [f"{OFFLOAD}=True"]):
        share = largest(shares, UTILIZATION, rolls_out, *offload)
        micro = largest(tokens, TOKENS, lambda plan: plan.update <= memory, *offload)
        found = [*offload, *share, *micro]
        plan = planned(*found)
        if plan.fits and rolls_out(plan):
            return found
    return None
