"""What is rehearsed of R^3: the rows of the steps, and the history that the worst one finds.

Planted is, of every problem, as many right answers as a group can be given, all as long as the limit, and, of as many
problems as may be reflected on, a share of right answers below the threshold and a wrong answer that long. Where
all-wrong groups are asked sooner the worst step asks those instead: at once, which takes longer, or the groups that the
step before it held.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from omegaconf import DictConfig

from r3_ext.rehearse.steps import HELD, WORST, Data, Plan, batches_of, kinds_of
from recipe.common.rows import PLAIN
from recipe.r3.config.r3_config import NEXT_STEP, NEXT_VISIT, R3Config, ReflectionConfig
from recipe.r3.config.r3_rules import validate_r3_config
from recipe.r3.history.store import History, Sample
from recipe.r3.reflection import CUT_MARK

NO_ANSWER = "-90071992547409931"
"""Ground truth of the worst step: no answer is right, so every group is dead and all of it is ranked."""
ROOM = 16
"""Tokens of a reflection prompt that are left to the stored attempt."""


def prepare(config: DictConfig, folder: Path, repeat: int) -> Plan:
    """Write the rows of all steps, and the history of the worst one, into the folder."""
    r3, data = validate_r3_config(config), Data(config, repeat)
    reflected, others, cut_off = worst(data, r3)
    held = worst(data, r3, HELD)[:2] if holds(r3) else ()
    data.write(folder, batches_of(repeat, has_history=True), *held, reflected, others)
    texts = [row[config.data.prompt_key][-1]["content"] for row in data.rows]
    ids = data.tokenizer(texts, add_special_tokens=False)["input_ids"]
    names = [[data.query_id(row) for row in rows] for rows in (reflected, others)]
    vocabulary = sorted({token for tokens in ids for token in tokens})
    plant(str(folder / "history.sqlite"), config, r3, *names, cut_off, vocabulary)
    return Plan(kinds_of(repeat, True, holds(r3)), data.problems, vars(Caps.of(config, r3)))


def holds(r3: R3Config) -> bool:
    """Whether groups wait for the step after theirs."""
    return r3.reflection.enable and r3.reflection.when == NEXT_STEP


@dataclass(frozen=True)
class Caps:
    """The most that the settings allow in a step."""

    fresh: int
    """Rows of plain prompts, those of the step before that waited included."""
    reflection: int
    """Reflection prompts."""
    replayed: int
    """Replayed rows."""
    ranked: int
    """Groups that are ranked."""

    @classmethod
    def of(cls, config: DictConfig, r3: R3Config) -> "Caps":
        prompts, n = config.data.train_batch_size, config.actor_rollout_ref.rollout.n
        reflection = r3.reflection.cap(prompts) if r3.reflection.enable else 0
        held, groups = holds(r3) * reflection, prompts + reflection
        ranked = groups + held if r3.ranking.enable else 0
        return cls((prompts + held) * n, reflection, groups * stored(r3), ranked)


def stored(r3: R3Config) -> int:
    """Replayed rows of a dead group whose answers are all wrong, at most."""
    finds = r3.replay.enable and r3.replay.outcome != "wrong"
    return min(r3.replay.k, r3.history.max_per_outcome) if finds else 0


def reflection_limit(reflection: ReflectionConfig, budget: int, count: Callable[[list[dict]], int]) -> tuple[int, bool]:
    """Tokens of the longest plain prompt that can be reflected on, and whether it takes a cut-off attempt for that.

    The template for attempts that were cut off is another text than the one for others; the longer one is the worse.
    """
    question = [{"role": "user", "content": "?"}]
    longest = {}
    for cut_off, template in ((False, reflection.template), (True, reflection.template_cut_off)):
        text = template.replace("{question}", "?").replace("{attempt}", CUT_MARK)
        longest[cut_off] = count([{"role": "user", "content": text}]) - count(question)
    cut_off = longest[True] >= longest[False]
    return budget - longest[cut_off] - ROOM, cut_off


def worst(data: Data, r3: R3Config, kind: str = WORST) -> tuple[list[dict], list[dict], bool]:
    """Rows of the worst step, or of the held one: those to be reflected on, then the others; and whether attempts were
    cut off."""
    longest = data.config.data.max_prompt_length
    limit, cut_off = reflection_limit(r3.reflection, longest, data.count)
    cap = Caps.of(data.config, r3).reflection
    made = []
    for number, row in enumerate(data.last()):
        row = data.longest(row, min(limit, longest) if number < cap else longest)
        truth = NO_ANSWER if kind == WORST else NO_ANSWER + "1"  # a problem of its own
        row["reward_model"] = {**row["reward_model"], "ground_truth": truth}
        if "query_id" in row:
            row["query_id"] = f"rehearse-{kind}-{number}"
        made.append(row)
    return made[:cap], made[cap:], cut_off


def plant(
    path: str,
    config: DictConfig,
    r3: R3Config,
    reflected: list[str],
    others: list[str],
    cut_off: bool,
    vocabulary: list[int],
) -> None:
    """The history that the worst step finds; its answers are as long as answers can be.

    Args:
        reflected, others: query ids of the problems to be reflected on, and of the others.
        vocabulary: token ids that answers are made of.
    """
    seed, length = config.data.seed, config.data.max_response_length
    rng = np.random.default_rng(seed)
    right = stored(r3)

    def sample(query_id: str, correct: bool, truncated: bool) -> Sample:
        tokens = rng.choice(vocabulary, length).astype(np.int32)
        log_probs = np.full(length, -1.0, np.float32)
        return Sample(query_id, tokens, correct, float(correct), truncated, 0, PLAIN, log_probs)

    samples = [sample(query_id, True, False) for query_id in (*reflected, *others) for _ in range(right)]
    # Right in less than `threshold` of its attempts, and in all of them.
    attempts = max(r3.reflection.min_attempts, int(right / r3.reflection.threshold) + 1)
    # Asked sooner, groups are so for what they are in the step, and no query is to be hard by its history.
    hard, easy = (reflected, others) if r3.reflection.when == NEXT_VISIT else ([], [*reflected, *others])
    samples += [sample(query_id, False, cut_off) for query_id in hard]
    statistics = [(query_id, PLAIN, attempts, right, int(cut_off)) for query_id in hard]
    statistics += [(query_id, PLAIN, right, right, 0) for query_id in easy if right]
    history = History(path, r3.history.max_per_outcome, int(r3.history.max_gib * 2**30), seed)
    try:
        history.absorb(samples, statistics)
    finally:
        history.close()
