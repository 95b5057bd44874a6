"""What the report's figures read of a row of metrics: a `Reader` gives a number, or None where the row has none."""

from r3_ext.report.runs import Reader, Row, Run


def get(*keys: str) -> Reader:
    """Reader of the first of these keys that a row has."""
    return lambda row: next((row[key] for key in keys if key in row), None)


def mean_of(ending: str) -> Reader:
    """Reader of the mean of val/BENCHMARK/`ending` over the benchmarks."""

    def read(row: Row) -> float | None:
        values = [value for key, value in row.items() if key.startswith("val/") and key.endswith(ending)]
        return sum(values) / len(values) if values else None

    return read


def dead(row: Row) -> float | None:
    """Groups that are all correct or all wrong."""
    if "groups/all_correct" not in row or "groups/all_wrong" not in row:
        return None
    return row["groups/all_correct"] + row["groups/all_wrong"]


def share(part: Reader, whole: Reader) -> Reader:
    """Reader of part / whole; None where the whole is 0."""
    return lambda row: None if part(row) is None or not whole(row) else part(row) / whole(row)


def ledger(row: Row) -> list[float] | None:
    """Mixed, rescued by replay, by ranking alone, left all wrong, left all right: adds up to groups/total."""
    names = ("groups/mixed", "groups/rescued_by_replay", "groups/still_dead", "groups/still_wrong")
    if dead(row) is None or any(name not in row for name in names):
        return None
    mixed, replayed, left, wrong = (row[name] for name in names)
    # groups/ranked counts groups that replay rescued as well.
    return [mixed, replayed, dead(row) - left - replayed, wrong, left - wrong]


def rescued_wrong(row: Row) -> float | None:
    """All wrong groups that got a signal back, by replay, ranking or both."""
    parts = ledger(row)
    return parts and row["groups/all_wrong"] - parts[3]


def rescued_right(row: Row) -> float | None:
    """The same of all right groups: none with `replay.outcome=correct`."""
    parts = ledger(row)
    return parts and row["groups/all_correct"] - parts[4]


MECHANISMS = ("replay", "reflection", "ranking")
TOTAL = get("groups/total")
TRUNCATED = get("fresh/truncated/mean", "response_length/clip_ratio")
LENGTH = get("response_length/mean", "fresh/response_length/mean")
ACCURACY = get("fresh/acc/mean")
SECONDS = get("timing_s/step")
DEAD_SHARE = share(dead, TOTAL)
RESCUED = share(rescued_wrong, get("groups/all_wrong")), share(rescued_right, get("groups/all_correct"))
WAITING = get("groups/outstanding"), get("reflection/groups/outstanding")
TAILS = get("replay/ratio/p99"), get("replay/ratio/p01")
OFF_POLICY = get("replay/ratio/above_2"), get("replay/ratio/below_0.5")
SAMPLE_SIZE = get("replay/ess/all"), get("replay/ess/rows")
PROMPTS = get("reflection/prompts"), get("reflection/solved")
TRANSFER = get("reflection/transfer/after"), get("reflection/transfer/before")


def validation_reader(source: str) -> Reader:
    """Pass@1 of a benchmark; verl's mean over its attempts where that is all there is."""
    own, verl = f"val/{source}/pass@1", f"val-core/{source}/acc/mean@"
    return lambda row: row[own] if own in row else next((row[key] for key in row if key.startswith(verl)), None)


def mean_pass_at_1(run: Run) -> Reader:
    """Mean of Pass@1 over the benchmarks of a run, on rows that have all of them."""
    readers = [validation_reader(source) for source in run.benchmarks]

    def read(row: Row) -> float | None:
        values = [reader(row) for reader in readers]
        return sum(values) / len(values) if values and None not in values else None

    return read
