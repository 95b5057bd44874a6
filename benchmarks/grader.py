"""What the grader says of a data set's reference answers, recorded before and after a change of it.

    python -m benchmarks.grader record deepscaler_train.parquet before.jsonl         half an hour on one core
    python -m benchmarks.grader compare before.jsonl after.jsonl                     each verdict that changed

Graded are each reference against itself and 100,000 pairs of references of different problems, by thirds: drawn at
random; at random from those that are more than digits; and near each other (equal but for the digits, or the same
characters in another order), since those are what a looser rule accepts first.
"""

import argparse
import json
import random
import re
import time
from collections import Counter, defaultdict
from pathlib import Path

from recipe.common.reward.math.pool import grade


def draw(answers: list[str], count: int) -> list[tuple[str, str, str]]:
    """Kind, reference and answer: each reference with itself, then `count` pairs. The same for the same data."""
    rng = random.Random(0)
    alike = defaultdict(list)
    for answer in sorted(set(answers)):
        text = "".join(answer.split())
        alike["shape", re.sub(r"[0-9]+", "9", text)].append(answer)
        alike["letters", "".join(sorted(text))].append(answer)
    groups = [group for group in alike.values() if len(group) > 1 and not group[0].isdigit()]
    more_than_digits = [answer for answer in answers if not answer.isdigit()]
    pairs = [("self", answer, answer) for answer in answers]
    for _ in range(count // 3):
        pairs.append(("near", *rng.sample(rng.choice(groups), 2)))
        pairs.append(("text", *rng.sample(more_than_digits, 2)))
    return pairs + [("random", *rng.sample(answers, 2)) for _ in range(len(answers) + count - len(pairs))]


def record(data: Path, out: Path, count: int, timeout_s: float) -> None:
    import pandas as pd

    verdicts, seconds = Counter(), []
    with out.open("w") as file:
        for kind, gold, pred in draw(pd.read_parquet(data, columns=["answer"])["answer"].tolist(), count):
            started = time.monotonic()
            verdict = grade(f"\\boxed{{{pred}}}", [gold], timeout_s, num_workers=1)
            seconds.append(time.monotonic() - started)
            verdicts[kind, verdict] += 1
            file.write(json.dumps([kind, gold, pred, verdict]) + "\n")
    for (kind, verdict), number in sorted(verdicts.items(), key=str):
        print(f"{kind:8} {verdict!s:6} {number}")
    print(f"{sum(seconds):.0f} s in all, {max(seconds):.2f} s for the slowest of {len(seconds)}")


def compare(before: Path, after: Path) -> None:
    old, new = ([json.loads(line) for line in path.read_text().splitlines()] for path in (before, after))
    if [row[:3] for row in old] != [row[:3] for row in new]:
        raise SystemExit(f"{before} and {after} do not hold the same pairs: record both from the same data")
    changed = [(*row, other[3]) for row, other in zip(old, new, strict=True) if row[3] != other[3]]
    for kind, gold, pred, was, is_now in changed:
        print(f"{kind}: {was} -> {is_now}: {gold!r} against {pred!r}")
    print(f"{len(changed)} of {len(old)} verdicts changed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("data", type=Path, help="parquet file with a column `answer`")
    recording.add_argument("out", type=Path)
    recording.add_argument("--pairs", type=int, default=100_000)
    recording.add_argument("--timeout-s", type=float, default=5.0)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "record":
        record(arguments.data, arguments.out, arguments.pairs, arguments.timeout_s)
    else:
        compare(arguments.before, arguments.after)


if __name__ == "__main__":
    main()
