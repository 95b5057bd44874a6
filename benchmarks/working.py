# Copyright 2026 Individual Contributor: the R^3 recipe authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""How many replayed answers are right by wrong working, in the R^3 cells of a study of worlds.

    python benchmarks/working.py outputs/mistaken/main/r3 replayed.csv

Of an answer in a world of arithmetic every step can be checked: `Start with 7. a) Add 6.` asks for `7+6=3`, and nothing
else. FILE gets a row for each world, training step and prompt of the answer: the rows that were replayed and trained,
how many of them do not show the steps asked, each with its result and in their order (`wrong`), and in how many of
these a fact is false (`false`); the others take other steps than those asked, or leave some out.
"""

import argparse
import csv
import json
import re
from collections import Counter
from pathlib import Path

import pandas as pd
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from r3_ext.r3.history.shared import snapshot
from r3_ext.tiny.tasks import truth
from recipe.r3.history.codec import unpack_tokens

FACT = re.compile(r"(\d)([+-])(\d)=(\d)")
START, STEP = re.compile(r"Start with (\d)\."), re.compile(r"(Add|Subtract) (\d)\.")
# The draw for the step after the last one is logged as well.
REPLAYS = """
    SELECT replays.step, samples.variant, replays.times, samples.query_id, samples.length, payloads.tokens
    FROM replays JOIN samples ON samples.id = replays.sample_id JOIN payloads ON payloads.id = samples.id
    WHERE replays.step <= ?
"""
Fact = tuple[int, str, int, int]
"""Value, sign, operand and result."""


def asked(problem: str) -> list[Fact]:
    """The facts that solve a problem: `Start with 7. a) Add 6.` gives [(7, "+", 6, 3)]."""
    value, facts = int(START.search(problem)[1]), []
    for verb, operand in STEP.findall(problem):
        step = (value, "+" if verb == "Add" else "-", int(operand))
        value = truth(*step)
        facts.append((*step, value))
    return facts


def told(answer: str) -> list[Fact]:
    return [(int(value), sign, int(operand), int(result)) for value, sign, operand, result in FACT.findall(answer)]


def has_false_fact(facts: list[Fact]) -> bool:
    return any(truth(*step) != result for *step, result in facts)


def of_run(run: Path) -> tuple[Counter, Counter, Counter]:
    """By step and variant: rows replayed, those of them with wrong working, and with a false fact."""
    config = OmegaConf.load(run / "config.yaml")
    tokenizer = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
    problems = pd.read_parquet(config.data.train_files).set_index("query_id").prompt
    steps = json.loads((run / "summary.json").read_text())["steps"]
    replayed, wrong, false = Counter(), Counter(), Counter()
    with snapshot(str(run / "history.sqlite")) as db:
        for step, variant, times, query_id, length, tokens in db.execute(REPLAYS, (steps,)):
            facts = told(tokenizer.decode(unpack_tokens(tokens, length)))
            replayed[step, variant] += times
            wrong[step, variant] += times * (facts != asked(problems[query_id][0]["content"]))
            false[step, variant] += times * has_false_fact(facts)
    return replayed, wrong, false


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arm", type=Path, help="folder of an arm of a study, with its cells seed_N")
    parser.add_argument("file", type=Path, help="CSV file to write")
    args = parser.parse_args()
    runs = {int(run.name.removeprefix("seed_")): run for run in args.arm.glob("seed_*")}
    if not runs:
        parser.error(f"{args.arm} holds no cells")
    with open(args.file, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("seed", "step", "variant", "replayed", "wrong", "false"))
        for seed, run in sorted(runs.items()):
            counts = of_run(run)
            writer.writerows((seed, *key, *(of[key] for of in counts)) for key in sorted(counts[0]))
            print(
                "world {}: {} rows replayed, {} of wrong working, {} with a false fact".format(
                    seed, *(of.total() for of in counts)
                )
            )


if __name__ == "__main__":
    main()
