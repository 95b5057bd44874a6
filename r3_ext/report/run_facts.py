"""What the sentences of a report ask of a run, and how they say a number."""

import numpy as np

from r3_ext.recipes import R3, recipe_of_trainer
from r3_ext.record.cautions import what_it_shows
from r3_ext.record.folder import INTERRUPTED, STOPPED
from r3_ext.record.summary import THROWN_AWAY
from r3_ext.report.findings import percent, total
from r3_ext.report.readers import MECHANISMS, TOTAL, dead, get, mean_pass_at_1
from r3_ext.report.runs import Arm, Run, clean
from recipe.common.rows import PLAIN

FINISHED, RUNNING, UNKNOWN = "finished", "is still running", "was trained"
BROKEN_OFF = {STOPPED: "was stopped by SIGTERM", INTERRUPTED: "was interrupted", None: "was killed"}


def cautions(runs: list[Run]) -> list[str]:
    """What is to be read before any figure of these runs; each text once."""
    started = [[line for line in run.starts if line["event"] == "start"] for run in runs]
    texts = (what_it_shows(starts[-1]["arguments"]) for starts in started if starts)
    return [text for text in dict.fromkeys(texts) if text]


def count(number: float, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def be(number: float) -> str:
    return "was" if number == 1 else "were"


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def state_of(run: Run) -> str:
    """FINISHED, RUNNING, UNKNOWN where no start is on record, or how it ended."""
    if not run.starts and "exit_code" not in run.summary:
        return UNKNOWN
    last = run.starts[-1] if run.starts else run.summary
    if last.get("event") == "start":
        return RUNNING if run.is_training else BROKEN_OFF[None]
    code = last.get("exit_code")
    if code not in (0, *BROKEN_OFF):
        return f"failed with exit code {clean(code, 20)}"
    return BROKEN_OFF.get(code, FINISHED)


def steps_of(run: Run) -> int:
    return sum("training/global_step" in row for row in run.rows)


def epochs_of(run: Run) -> int:
    """Epochs begun; 0 where none is logged."""
    _, epochs = run.points(get("training/epoch"), "step")
    return int(epochs.max()) + 1 if len(epochs) else 0


def is_r3(run: Run) -> bool:
    """Whether a mechanism of R^3 was on; without a config, whether the run logged reflection prompts."""
    if not run.config:
        return any("reflection/prompts" in row for row in run.rows)
    if recipe_of_trainer(run.config.get("trainer.v1.trainer_mode")) is not R3:
        return False
    on = {name for name in MECHANISMS if run.config.get(f"algorithm.r3.{name}.enable", True)}
    # GRPO with further answers, which is there to compare with.
    is_control = on == {"reflection"} and run.config.get("algorithm.r3.reflection.ask") == PLAIN
    return bool(on) and not is_control


def accuracies(arm: Arm) -> tuple[float, float] | None:
    """First and last validation accuracy, means over the runs that have two or more; None without such a run."""
    curves = (run.points(mean_pass_at_1(run), "step")[1] for run in arm.runs)
    ends = [(y[0], y[-1]) for y in curves if len(y) > 1]
    return tuple(np.mean(ends, axis=0).tolist()) if ends else None


def from_to(first: float, last: float) -> str:
    return f"from {percent(first)} to {percent(last)}"


def groups_of(runs: list[Run]) -> tuple[int, int]:
    """Groups of answers, and how many of them were dead; with those that dynamic sampling threw away."""
    arm = Arm("", runs)
    thrown = total(arm, get(THROWN_AWAY))
    return total(arm, TOTAL) + thrown, total(arm, dead) + thrown
