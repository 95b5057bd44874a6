"""The figures of gpu_kit.json as the tables of docs/gpus.md: `python -m tests.gpu.kit.tables FILE`."""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = list(head)
    lines = [
        head,
        ["---"] * len(head),
        *([f"{v:.3g}" if isinstance(v, float) else str(v) for v in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def attention(found: dict) -> str:
    rows = []
    for length, ours in found["recipe"].items():
        cudnn = found.get("cudnn", {}).get(length, {})
        rows.append((length, cudnn.get("not_finite", ""), ours["not_finite"], cudnn.get("ms", ""), ours["ms"]))
    return table(("tokens", "not finite, cuDNN", "not finite, as it trains", "ms, cuDNN", "ms, as it trains"), rows)


def training(found: dict) -> str:
    grpo, off = found["seconds"]["grpo"], found["seconds"]["off"]
    rows = [(name, grpo[name], off.get(name, "")) for name in grpo]
    return table(("seconds, median", "GRPO", "R^3, all off"), rows)


def memory(found: dict) -> str:
    phases = [name for name, value in found.items() if isinstance(value, dict) and "peak_gib" in value]
    rows = [(name, found[name]["peak_gib"], found[name].get("tokens_per_s", "")) for name in phases]
    computed = found["computed_gib"]["update"]
    return table(("phase", "peak GiB", "tokens per s"), [*rows, ("update, computed", computed, "")])


TABLES = {"attention": attention, "training": training, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    found = json.loads(parser.parse_args().file.read_text())
    machine = found["machine"]
    print(f"{machine['device'] or 'CPU'}, torch {machine['torch']}, commit {machine['commit'][:7]}\n")
    for name, stage in found["stages"].items():
        print(f"{name}: {'passed' if stage['ok'] else stage['why']}\n")
        if stage["ok"] and name in TABLES:
            print(TABLES[name](stage["figures"]) + "\n")


if __name__ == "__main__":
    main()
