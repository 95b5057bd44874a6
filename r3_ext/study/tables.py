"""What a study of one or several experiments found, as tables on the console."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from r3_ext.study import hypotheses, text
from r3_ext.study.arms import TURNS, WORDS, unit_of
from r3_ext.study.design import Design
from r3_ext.study.outcome import REFERENCES, references


def show_verdicts(design: Design, found: dict[str, hypotheses.Verdict | None], console: Console) -> None:
    rows = []
    for hypothesis in design.hypotheses:
        verdict = found[hypothesis.name]
        figures = ("", "", "", text.TOO_FEW)
        if verdict:
            interval = f"{verdict.corrected_low:+.3f} to {verdict.corrected_high:+.3f}"
            of = f"{verdict.worlds} of {verdict.planned}"
            figures = (of, f"{verdict.estimate:+.3f}", interval, text.final(verdict))
        rows.append((hypothesis.name, hypothesis.says, *figures))
    columns = ("hypothesis", "says", "worlds", "estimate", "corrected interval", "verdict")
    console.print(table_of("hypotheses of the plan", columns, rows))


def show(results: dict, console: Console, name: str = "") -> None:
    """A set of tables for each set of seeds: means over different seeds do not compare."""
    for compared in results["comparisons"]:
        seeds, of = compared["seeds"], compared["arms"]
        unit, others = unit_of(of), references(of)
        title = f"{name and name + ', '}at {results['tokens']:,} {WORDS[unit]}; mean and 95 % interval over "
        title += f"seed{'s' if len(seeds) > 1 else ''} {text.seeds(seeds)}"
        columns = ("arm", "accuracy", "mean so far", *(text.compared_with(other) for other in others), "speed-up")
        columns = columns if others == REFERENCES else columns[:-1]
        console.print(table_of(title, columns, [outcome_row(arm, row, others) for arm, row in of.items()]))
        title = "sums over the cells: groups, and what was done about dead ones"
        columns = ("arm", "groups", "dead", "replay", "ranking", "left", "rows replayed", "reflections", "solved")
        sums = {arm: row["ledger"] for arm, row in of.items() if "ledger" in row}
        if sums and unit == TURNS:
            title, columns = "sums over the cells: groups of sessions", ("arm", "groups", "dead")
            rows = [ledger_row(arm, row)[:3] for arm, row in sums.items()]
            console.print(table_of(title, columns, rows))
        elif sums:
            console.print(table_of(title, columns, [ledger_row(arm, row) for arm, row in sums.items()]))
        title = "what a cell costs on average"
        columns = ("arm", "tokens", "under reflection", "steps", "updates", "trained rows", "seconds")
        rows = [cost_row(arm, row, len(seeds)) for arm, row in sums.items() if "updates" in row]
        if unit == TURNS:
            columns, rows = (*columns[:2], *columns[3:]), [(*row[:2], *row[3:]) for row in rows]
        if rows:
            console.print(table_of(title, columns, rows))


def outcome_row(arm: str, found: dict, others: tuple[str, ...] = REFERENCES) -> tuple[str, ...]:
    speedup = found.get("speedup")
    row = (
        arm,
        text.spread(found["accuracy"], digits=2),
        text.spread(found["mean_accuracy"], digits=2),
        *(text.spread(found["difference"][other], "+", 2) if other in found["difference"] else "" for other in others),
        "" if speedup is None else text.speedup(speedup),
    )
    return row if others == REFERENCES else row[:-1]


def ledger_row(arm: str, sums: dict[str, int]) -> tuple[str, ...]:
    counts = (
        sums["groups_total"],
        sums["groups_all_correct"] + sums["groups_all_wrong"],
        sums["groups_rescued_by_replay"],
        sums["groups_ranked"],
        sums["groups_still_dead"],
        sums["replayed_rows"],
        sums["reflection_prompts"],
        sums["reflection_solved"],
    )
    return (arm, *(f"{count:,}" for count in counts))


def cost_row(arm: str, sums: dict[str, int], cells: int) -> tuple[str, ...]:
    names = ("generated_tokens", "reflection_tokens", "steps", "updates", "trained_rows", "seconds")
    return (arm, *(f"{sums[name] / cells:,.0f}" for name in names))


def table_of(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    """A table that fits a terminal of 80 columns."""
    table = Table(title=title, box=SIMPLE, padding=0)
    for column in columns:
        table.add_column(column, justify="left" if column in ("arm", "hypothesis", "says") else "right")
    for row in rows:
        table.add_row(*row)
    return table
