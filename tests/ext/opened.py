"""Runs and what a report says of them first, for its tests."""

import re
from pathlib import Path

from r3_ext.report.opening import opening
from r3_ext.report.runs import Arm, Run

FOLDER = Path("/out/r3_embedded/one")
R3 = {
    "trainer.v1.trainer_mode": "r3",
    "trainer.total_epochs": 5,
    "actor_rollout_ref.actor.optim.lr": 2e-4,
    "actor_rollout_ref.rollout.n": 4,
    "data.max_response_length": 64,
    "data.train_batch_size": 16,
    **{f"algorithm.r3.{name}.enable": True for name in ("replay", "reflection", "ranking")},
}


def step(number, dead=10, left=4, wrong=0, **extra):
    """16 groups, of the dead ones all but `left` rescued, one of these by ranking alone; `wrong` of those all wrong."""
    row = {"step": number, "training/global_step": number, "training/epoch": (number - 1) // 2}
    groups = {"total": 16, "mixed": 16 - dead, "all_correct": dead, "all_wrong": 0, "still_dead": left}
    groups["still_wrong"] = wrong
    groups["rescued_by_replay"] = max(0, dead - left - 1)
    counts = {f"groups/{name}": value for name, value in groups.items()}
    return row | counts | {"reflection/prompts": 3, "reflection/solved": 2} | extra


def rows_of(accuracies, steps=4, **of_step):
    """Steps, with a validation before them and one after each, as many as there are accuracies."""
    rows = [{"step": 0}, *(step(number, **of_step) for number in range(1, steps + 1))]
    for row, accuracy in zip(rows, accuracies, strict=False):
        row["val/arithmetic/pass@1"] = accuracy
    return rows


def start(**arguments):
    arguments = {"options": {"profile": "embedded", "method": "r3"}, "sources": {}, "overrides": []} | arguments
    return {"event": "start", "arguments": arguments}


def end(code=0):
    return {"event": "end", "exit_code": code}


def run_of(rows, config=None, starts=None, folder=FOLDER, **fields):
    config = R3 if config is None else config
    return Run(folder, rows, config, starts=[start(), end()] if starts is None else starts, **fields)


def said(*runs, labels=None):
    """The three sentences of runs in an arm each, checked to be sentences."""
    labels = labels or [run.method for run in runs]
    sentences = opening([Arm(label, [run]) for label, run in zip(labels, runs, strict=True)])
    for text in sentences:
        outside = re.sub(r"`[^`]*`", "", text)
        assert re.match("[A-Z0-9`]", text) and text.endswith(".") and ". " not in outside and "nan" not in outside
        assert not re.search(r"\b1 (steps|problems|groups|starts|runs|values|reflection prompts)\b", text)
    return tuple(text.replace("\xa0", " ") for text in sentences)
