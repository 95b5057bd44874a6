"""summary.json of a run, computed from the rows of its metrics.jsonl, those that were cut from it, and its starts."""

import math
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import takewhile
from pathlib import Path
from statistics import mean, median

from r3_ext.host.files import json_lines

CUT = "metrics_cut.jsonl"
"""Rows of steps that a resumed run trained again."""
NO_SCORE = "the grader was late, or the reward function failed"
"""Why an answer has no score, and counts as wrong."""
NO_USE = "they cost and do not help; set algorithm.rrl.restarts.share=0, or another algorithm.rrl.states.origin"
"""Of restarts that succeed no more often than fresh attempts at the same problems."""
GROUPS = ("total", "mixed", "all_correct", "all_wrong", "rescued_by_replay", "ranked", "still_dead", "still_wrong")
WAYS = ("reflection", "plain", "restart")
"""How all-wrong groups are asked again before the next visit."""
ALL_GROUPS = (*GROUPS, "no_signal", "split")
THROWN_AWAY = "training/filter_groups/evicted_samples"
"""Groups without signal that dynamic sampling threw away: verl counts groups here, by whatever name."""


def read_metrics(path: Path) -> list[dict]:
    """Rows of a metrics.jsonl, one dict per logged step with its `step`; what follows a damaged line is left out."""
    return [numbers(row) for row in read_rows(path)]


def read_rows(path: Path) -> list:
    """The value of each line up to a damaged one."""
    return list(takewhile(lambda row: row is not None, json_lines(path)))


def numbers(row: dict) -> dict:
    """The row with NaN for what is no finite number: verl's file has null there."""
    return {key: math.nan if value is None else value for key, value in row.items()} if isinstance(row, dict) else row


def read_cut(path: Path) -> list[dict]:
    """Rows of a metrics_cut.jsonl; lines that were damaged when they were moved there are left out."""
    return [row for row in json_lines(path) if isinstance(row, dict)]


def validation_accuracy(row: dict) -> float | None:
    """Mean over the benchmarks of a row of validation's Pass@1, verl's `val-core/<source>/acc/mean@n` without it; or
    None."""
    own = [value for key, value in row.items() if key.startswith("val/") and key.endswith("/pass@1")]
    values = own or [value for key, value in row.items() if key.startswith("val-core/") and "/acc/mean@" in key]
    return mean(values) if values else None


def reward_of(row: dict) -> float:
    """Mean reward of the fresh plain rows of a step, ranking rewards excluded; verl's own score for a baseline."""
    return row.get("fresh/score/mean", row.get("critic/score/mean", math.nan))


def skipped_steps(row: dict) -> tuple[int, int]:
    """Optimizer steps of a row that were skipped, as their gradient was not finite, and those that were not; of actor
    and critic together."""
    skipped, taken = (
        sum(int(row.get(f"{role}/{name}", 0)) for role in ("actor", "critic"))
        for name in ("skipped_steps", "optimizer_steps")
    )
    return skipped, taken


def generated_tokens(row: Mapping[str, float]) -> float | None:
    """Tokens generated for training in a step. verl's own trainers log none: as many as its totals say of the trained
    rows; None of a row without these."""
    if "generated/tokens" in row:
        return row["generated/tokens"]
    names = "perf/total_num_tokens", "response_length/mean", "prompt_length/mean"
    total, length, prompt = map(row.get, names)
    if total is None or length is None or prompt is None or length + prompt <= 0:
        return None
    return total / (length + prompt) * length


def seconds_of(starts: list[dict]) -> float:
    """Seconds of all starts in starts.jsonl together; one that was killed counts as long as it wrote anything."""
    return sum(line["seconds"] for line in starts if line["event"] == "end")


def over_starts(starts: list[dict], cut: list[dict]) -> dict:
    """How often a run was started, and what it trained twice for that.

    Args:
        starts: lines of starts.jsonl.
        cut: rows of metrics_cut.jsonl.
    """
    return {
        "starts": sum(line["event"] == "start" for line in starts),
        "trained_again": {
            "steps": sum("training/global_step" in row for row in cut),
            "generated_tokens": int(sum(generated_tokens(row) or 0 for row in cut)),
        },
    }


def summarise(rows: list[dict], batch_size: int, n: int, seconds_total: float, with_sessions: bool = False) -> dict:
    """The summary of a run.

    verl's own trainers (trainer_mode=sync) log no groups; their rows follow from the batch size and `n`, their
    tokens from the totals. Neither includes what dynamic sampling threw away.

    Args:
        rows: rows of metrics.jsonl.
        batch_size, n: data.train_batch_size and actor_rollout_ref.rollout.n.
        seconds_total: wall clock of the whole command, over all its starts.
        with_sessions: whether it trained on sessions of several turns, a row each.
    """
    steps = [row for row in rows if "training/global_step" in row]

    def is_logged(key: str) -> bool:
        return bool(steps) and key in steps[-1]

    total = partial(total_of, steps)
    fresh_rows = sum(int(row.get("fresh/rows", batch_size * n)) for row in steps)
    return {
        "steps": len(steps),
        "epochs": int(steps[-1]["training/epoch"]) + 1 if steps else 0,
        "prompts": total("groups/total") if is_logged("groups/total") else batch_size * len(steps),
        "generated_tokens": int(sum(generated_tokens(row) or 0 for row in steps)),
        "trained_rows": fresh_rows + sum(map(total, ("replay/rows", "reflection/rows", "restart/rows"))),
        "updates": total("actor/optimizer_steps") + total("actor/skipped_steps")
        if any("actor/optimizer_steps" in row for row in steps)
        else None,
        "trained_tokens": total("trained/tokens") if is_logged("trained/tokens") else None,
        "groups": {name: total(f"groups/{name}") if is_logged(f"groups/{name}") else None for name in ALL_GROUPS},
        "groups_thrown_away": total(THROWN_AWAY),
        "sessions": _sessions(steps) if with_sessions else None,
        "skipped_steps": sum(skipped_steps(row)[0] for row in steps),
        "replayed_rows": total("replay/rows"),
        "reflection": asked_again(steps),
        "restarts": compared_restarts(steps),
        "reward_errors": total("reward/errors"),
        "val_reward_errors": int(sum(row.get("val/reward_errors", 0) for row in rows)),
        "reward": _rewards(steps),
        "val": _accuracies(rows),
        "seconds": {
            "total": round(seconds_total, 1),
            "per_step_median": round(median(row["timing_s/step"] for row in steps), 2) if steps else None,
        },
    }


def compared_restarts(steps: list[dict]) -> dict[str, float] | None:
    """How many restarts can be compared with fresh attempts at the same problems, and the success of both; None of a
    run without. These are restarts whose problem came again: `rows` are all of them, and `right` is their success."""
    rows = [row for row in steps if row.get("restart/compared")]
    if not rows:
        return None
    number = round(sum(row["restart/compared"] for row in rows))
    names = {"success": "restart/success", "fresh_success": "restart/fresh_success"}
    shares = {name: sum(row[key] * row["restart/compared"] for row in rows) / number for name, key in names.items()}
    made = [(row["restart/rows"], row["restart/acc/mean"]) for row in steps if "restart/acc/mean" in row]
    if made:
        in_all = round(sum(count for count, _ in made))
        shares["right"] = sum(count * success for count, success in made) / in_all
    counts = {"compared": number} | ({"rows": in_all} if made else {})
    return counts | {name: round(share, 4) for name, share in shares.items()}


def environment_steps(row: dict) -> int:
    """Turns that a training step of sessions played: each is a row of its own."""
    return int(row.get("fresh/rows", 0))


def _sessions(steps: list[dict]) -> dict:
    """Turns in all, and what the sessions came to: means over the first and the last tenth of the steps. verl's own
    trainers do not count sessions that failed: None."""
    window = max(1, len(steps) // 10)
    ends = {"first": steps[:window], "last": steps[-window:]}
    return {
        "turns": sum(map(environment_steps, steps)),
        "failed": total_of(steps, "sessions/failed") if any("sessions/failed" in row for row in steps) else None,
        "success": {
            name: round(mean(row.get("fresh/acc/mean", math.nan) for row in rows), 4) if rows else None
            for name, rows in ends.items()
        },
    }


def validation_lists(rows: list[dict]) -> dict[str, dict[str, float]]:
    """The figures of each list of the last validation, `pass@1`, its interval's ends `low` and `high`, `problems` and
    `failed`."""
    last = next((row for row in reversed(rows) if validation_accuracy(row) is not None), {})
    names = [key.removeprefix("val/").removesuffix("/pass@1") for key in last if key.endswith("/pass@1")]
    keys = {"pass@1": "pass@1", "low": "pass@1/low", "high": "pass@1/high", "problems": "problems", "failed": "failed"}
    return {name: {figure: last.get(f"val/{name}/{key}", math.nan) for figure, key in keys.items()} for name in names}


def total_of(rows: list[dict], key: str) -> int:
    """The sum of a count over rows; 0 in those that lack it."""
    return int(sum(row.get(key, 0) for row in rows))


def asked_again(rows: Iterable[dict]) -> dict:
    """Reflection prompts, and what asking all-wrong groups again before the next visit found, by way."""
    total, names = partial(total_of, list(rows)), ("asked", "found", "tokens")
    by = {way: {name: total(f"reflection/by_{way}/{name}") for name in names} for way in WAYS}
    counts = {name: total(f"reflection/{name}") for name in ("prompts", "solved", "prompt_tokens")}
    return counts | {"by": {way: found for way, found in by.items() if found["asked"]}}


def _rewards(steps: list[dict]) -> dict:
    """Means over the first and last tenth of the steps, at least one step."""
    window, rewards = max(1, len(steps) // 10), [reward_of(row) for row in steps]
    return {
        "first": round(mean(rewards[:window]), 4) if rewards else None,
        "last": round(mean(rewards[-window:]), 4) if rewards else None,
        "window_steps": window,
    }


def _accuracies(rows: list[dict]) -> dict:
    """Of the first and the last validation."""
    found = [value for row in rows if (value := validation_accuracy(row)) is not None]
    return {"first": round(found[0], 4) if found else None, "last": round(found[-1], 4) if found else None}
