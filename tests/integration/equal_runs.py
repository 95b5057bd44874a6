"""A run that was killed and went on equals one that never was: metrics, weights, the history at each checkpoint."""

from contextlib import closing
from pathlib import Path

from recipe.r3.history.codec import COLUMNS, decode
from recipe.r3.history.file import check_tables, open_for_reading

from .conftest import Run, assert_equal_weights

UNCOMPARED = ("timing", "perf/", "actor/perf/", "critic/perf/", "history/write_s", "history/wait_s")
"""Metrics that are seconds or bytes of the machine."""
OF_RECORDED = ("training/off_policy/trajectory_staleness",)
"""verl's age of rows, which a run that replays a recording has otherwise than the one that made it."""


def check_history(path: Path) -> None:
    """No sample half-written: the tables are whole, and every sample fits its checksum."""
    if not path.exists():
        return
    rows = f"SELECT id, {COLUMNS}, checksum, tokens, log_probs FROM samples LEFT JOIN payloads USING (id)"
    with closing(open_for_reading(str(path))) as db:
        check_tables(db)
        for row in db.execute(rows):
            decode(row[1:], row[0], str(path))


def states(path: Path) -> dict[int, list]:
    """What the history holds at every pinned step, without row ids."""
    db = open_for_reading(str(path))
    found = {}
    for (step,) in db.execute("SELECT step FROM pins ORDER BY step").fetchall():
        samples = db.execute(
            "SELECT query_id, variant, correct, step, score, digest, checksum FROM samples WHERE step <= :s "
            "AND (evicted IS NULL OR evicted > :s) AND NOT abandoned ORDER BY id",
            {"s": step},
        ).fetchall()
        counts = db.execute("SELECT * FROM statistics WHERE step <= ? ORDER BY 1, 2, 3", (step,)).fetchall()
        replays = db.execute(
            "SELECT step, query_id, variant, sample_step, times FROM replays WHERE step <= ? ORDER BY 1, 2, 3, 4",
            (step,),
        ).fetchall()
        found[step] = [samples, counts, replays]
    db.close()
    return found


def compared(run: Run, but: tuple[str, ...] = ()) -> list[dict]:
    left = (*UNCOMPARED, *but)
    return [{key: value for key, value in row.items() if not key.startswith(left)} for row in run.rows]


def assert_equal_runs(expected: Run, actual: Run, steps: int, kills: int = 0, but: tuple[str, ...] = ()) -> None:
    """Equal metrics, weights and history, if any. verl logs a step after its checkpoint, so a kill may lose one row."""
    theirs, ours = ({row["step"]: row for row in compared(run, but)} for run in (expected, actual))
    assert list(theirs) == list(range(1, steps + 1)) and list(ours) == sorted(ours)
    assert theirs.keys() >= ours.keys() and len(ours) >= steps - kills
    for step, row in ours.items():
        keys = row.keys() | theirs[step].keys()
        different = {
            key: (theirs[step].get(key), row.get(key)) for key in keys if theirs[step].get(key) != row.get(key)
        }
        assert not different, f"step {step}: {different}"
    assert_equal_weights(expected, actual, steps)
    histories = [run.folder / "history.sqlite" for run in (expected, actual)]
    if not any(path.exists() for path in histories):
        return  # a method without one
    expected_states, actual_states = map(states, histories)
    assert expected_states.keys() >= actual_states.keys() and steps in actual_states
    for step, state in actual_states.items():
        assert expected_states[step] == state, f"the history's state at step {step}"
