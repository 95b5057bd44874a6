"""`r3 probe` on the tiny model: what it asks, what it counts, and that it generates nothing twice."""

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from r3_ext.evaluate import plan

pytestmark = pytest.mark.integration
PROBLEMS, N, LIMIT = 8, 4, 48
FUNCTION = """
import re

def compute_score(data_source, solution_str, ground_truth, extra_info):
    boxes = re.findall(r"boxed{([^{}]*)}", solution_str)
    return {"score": 2.5 * (boxes[-1:] == [ground_truth]), "acc": boxes[-1:] == [ground_truth]}
"""


def r3_probe(*arguments) -> tuple[int, str]:
    command = [sys.executable, "-m", "r3_ext.cli", "probe", "--profile", "embedded", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout + done.stderr


def answers(folder) -> list[dict]:
    return [row for part in plan.parts(folder) for row in pq.read_table(part).to_pylist()]


def test_a_probe_asks_as_training_does_and_goes_on_where_it_was(warm_start, tmp_path):
    out, sizes = tmp_path / "out", ["--problems", PROBLEMS, "--max-tokens", LIMIT]
    given = ["--model", warm_start / "model", "--data", warm_start / "train.parquet", "--out", out, *sizes]
    code, output = r3_probe(*given)
    assert code == 0 and "R^3:" in output, output
    found = json.loads((out / "probe.json").read_text())
    plain, reflected = answers(out / "plain"), answers(out / "reflection")
    assert len(plain) == PROBLEMS * 2 * N and max(row["response_tokens"] for row in plain) <= 2 * LIMIT
    assert len(reflected) == found["asked_again"] * N > 0
    assert max(row["response_tokens"] for row in reflected) <= LIMIT
    assert sum(found["right_answers"]["problems"]) == PROBLEMS
    assert found["cost"]["generated"] == sum(row["response_tokens"] for row in plain + reflected)

    # The prompts are those of the training rows, and those of reflection hold a wrong answer of the first epoch.
    tokenizer = AutoTokenizer.from_pretrained(warm_start / "model")
    rows = {row["query_id"]: row["prompt"] for row in pq.read_table(warm_start / "train.parquet").to_pylist()}
    names = {row["index"]: row["query_id"] for row in plan.read_problems(out / "plain")}
    for (_, index), token_ids in plan.read_prompts(out / "plain").items():
        asked = tokenizer.apply_chat_template(rows[names[index]], tokenize=False, add_generation_prompt=True)
        assert tokenizer.decode(token_ids) == asked
    scores = pq.read_table(out / "plain" / "scores.parquet").to_pylist()
    right = {(row["index"], row["sample"]) for row in scores if row["correct"] and row["response_tokens"] <= LIMIT}
    for (_, index), token_ids in plan.read_prompts(out / "reflection").items():
        first = [row for row in plain if row["index"] == index and row["sample"] < N]
        assert not right & {(index, row["sample"]) for row in first}, "not hard"
        text = tokenizer.decode(token_ids)
        starts = [row["response"][:20].strip() for row in first]
        assert rows[names[index]][-1]["content"] in text and any(start in text for start in starts)

    # The same answers, judged by a function that says the same of them: nothing is generated, no figure changes.
    (tmp_path / "mine.py").write_text(FUNCTION)
    written = {file: os.stat(file).st_mtime_ns for name in ("plain", "reflection") for file in plan.parts(out / name)}
    code, output = r3_probe(*given, f"reward.custom_reward_function.path={tmp_path / 'mine.py'}")
    assert code == 0 and "starting vLLM" not in output, output
    again = json.loads((out / "probe.json").read_text())
    assert again["settings"]["reward"] == {"by": f"{tmp_path / 'mine.py'}:compute_score", "no_score": 0}
    assert {**again, "cost": None, "settings": None} == {**found, "cost": None, "settings": None}
    assert {file: os.stat(file).st_mtime_ns for file in written} == written
