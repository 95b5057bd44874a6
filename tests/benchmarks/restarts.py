"""What restarts did in the study of them: tables of its record's page that no plan makes.

    python -m tests.benchmarks.cells outputs/rrl_worlds/critic examples/results/rrl_worlds \\
        --arms rrl_random rrl rrl_right
    python -m tests.benchmarks.restarts
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from r3_ext.study import record
from r3_ext.study.hypotheses import values_of
from r3_ext.study.outcome import Curve, accuracy_at, mean_accuracy
from r3_ext.study.text import mean_and_interval
from tests.benchmarks.rivals import RESULTS, design_of, steps_of

NAME = "rrl_worlds"
RECORD = RESULTS / NAME
DESIGN = design_of(NAME)
CRITIC, GROUPS = DESIGN.experiments
BUDGET = CRITIC.tokens
RESTARTED = CRITIC.arms[1:]
"""Arms that restart from states."""


def mean_of(found: dict[int, dict], column: str, worlds: Iterable[int]) -> float:
    return float(np.mean([found[world][column] for world in worlds]))


def share(part: str, whole: str, found: dict[int, dict], worlds: Iterable[int]) -> float:
    """The mean over the worlds of a share."""
    return float(np.mean([found[world][part] / found[world][whole] for world in worlds]))


def arm_rows() -> list[str]:
    """What a cell of each arm reached, cost and restarted, on average; of all its worlds, and of those of all arms."""
    curves, ledger, rows = record.read_curves(RECORD), record.read_ledger(RECORD), []
    for folder, arms, worlds in (
        ("critic", CRITIC.arms, CRITIC.seeds),
        ("critic", CRITIC.arms, GROUPS.seeds),
        ("groups", GROUPS.arms, GROUPS.seeds),
    ):
        for arm in arms:
            of, did = curves[f"{folder}/{arm}"], ledger[f"{folder}/{arm}"]
            reached = [
                f"{np.mean([measure(of[world], at) for world in worlds]):.3f}"
                for measure, at in ((accuracy_at, 0), (mean_accuracy, BUDGET), (accuracy_at, BUDGET))
            ]
            cost = f"{mean_of(did, 'updates', worlds):.1f}", f"{mean_of(did, 'prompt_tokens', worlds):,.0f}"
            wrong = f"{100 * share('groups_all_wrong', 'groups_total', did, worlds):.0f} %"
            acted = "-"
            if mean_of(did, "restart_rows", worlds):
                rows_of = share("restart_rows", "trained_rows", did, worlds)
                acted = f"{rows_of:.2f}, {right(did[world] for world in worlds):.2f}"
            rows.append(f"| `{arm}` | {len(worlds)} | {' | '.join((*reached, *cost, wrong, acted))} |")
    return rows


def right(cells: Iterable[dict]) -> float:
    """Share of all restarts of these cells that were right."""
    counts = [(cell["restart_right"], cell["restart_rows"]) for cell in cells]
    return sum(number for number, _ in counts) / sum(rows for _, rows in counts)


def contrasts(measure: str = "mean_accuracy", change: Callable[[dict], dict] = dict) -> dict[str, dict[int, float]]:
    """Of each hypothesis its contrast by world, of another measure or of changed curves."""
    curves = change(record.read_curves(RECORD))
    return {
        one.name: values_of(replace(one, measure=measure), curves, DESIGN.budgets, DESIGN.worlds)
        for one in DESIGN.hypotheses
    }


def from_one_start(curves: dict[str, dict[int, Curve]]) -> dict[str, dict[int, Curve]]:
    """Every arm of a world begins at the mean of its first validations, which are of the same model."""
    first = {
        world: np.mean([of[world][1][0] for of in curves.values() if world in of])
        for of in curves.values()
        for world in of
    }
    return {
        arm: {world: (x_V, np.append(first[world], y_V[1:])) for world, (x_V, y_V) in of.items()}
        for arm, of in curves.items()
    }


def other_rows() -> list[str]:
    """Of each hypothesis what the plan does not ask: its contrast from one start, and at the end of the budget."""
    ways = contrasts(change=from_one_start), contrasts("accuracy")
    return [
        f"| {one.says.partition(', on average')[0]} | "
        + " | ".join(mean_and_interval(np.array([*found[one.name].values()])) for found in ways)
        + " |"
        for one in DESIGN.hypotheses
    ]


def success(*arms: str, world: str = "") -> tuple[int, float, float, float]:
    """Worlds, restarts that were compared, and their success and that of later fresh attempts at the same problems.

    world: of that alone.
    """
    known = [r for r in steps_of(NAME) if r["arm"] in arms and r["compared"] and world in ("", r["seed"])]
    compared, own, fresh = (
        np.array([float(row[column]) for row in known]) for column in ("compared", "success", "fresh_success")
    )
    total = compared.sum()
    return len({row["seed"] for row in known}), total, (compared * own).sum() / total, (compared * fresh).sum() / total


def success_rows() -> list[str]:
    found = {arm: success(arm) for arm in RESTARTED}
    return [f"| `{arm}` | {w} | {n:,.0f} | {own:.3f} | {fresh:.3f} |" for arm, (w, n, own, fresh) in found.items()]


def paid() -> np.ndarray:
    """(W,) R^3, both arms, less PPO, at as many prompt and generated tokens together as PPO has in its budget."""
    curves, ledger = record.read_curves(RECORD), record.read_ledger(RECORD)

    def read(arm: str, world: int) -> float:
        return ledger[arm][world]["prompt_tokens"] / ledger[arm][world]["generated_tokens"]

    def less(arm: str, world: int) -> float:
        tokens = BUDGET * (1 + read("critic/ppo", world)) / (1 + read(arm, world))
        return mean_accuracy(curves[arm][world], tokens) - mean_accuracy(curves["critic/ppo"][world], BUDGET)

    return np.array([np.mean([less(f"groups/{arm}", world) for arm in GROUPS.arms]) for world in GROUPS.seeds])


def main() -> None:
    for rows in (arm_rows(), other_rows(), success_rows()):
        print(*rows, "", sep="\n")
    print("R^3 with its prompts paid for, less PPO:", mean_and_interval(paid()))


if __name__ == "__main__":
    main()
