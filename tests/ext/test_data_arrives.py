"""Any parquet in verl's format arrives in the trainer's batch as it was written: prompt, truth, id and source.

Files are drawn at random, prepared as DATA, and loaded by verl's own dataset, data loader and batching, under the
project's configuration and with the hook of R3Trainer that names queries.
"""

import os
import random
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import open_dict

from r3_ext.data import check as rows
from r3_ext.settings import prepare
from r3_ext.settings.compose import compose_config
from r3_ext.tiny import tiny_model
from recipe.common.query_ids import make_query_id
from recipe.r3.r3_trainer import R3Trainer

pytestmark = pytest.mark.slow

WORDS = [
    "x^2",
    "求",
    "é",
    "\\boxed{5}",
    "1/2",
    "",
    "\n",
    '"',
    "'",
    "<think>",
    "{attempt}",
    "${a}",
    "\U0001f600",
    "=",
    "\t",
]
EXTRA = {
    "level": lambda rng: rng.choice([1, 2, None]),
    "index": lambda rng: rng.randrange(9),
    "uid": lambda rng: f"u{rng.randrange(9)}",
    "ability": lambda rng: "math",
    "solution": lambda rng: text(rng),
    "score": lambda rng: rng.random(),
    "tags": lambda rng: [text(rng) for _ in range(rng.randrange(3))],
    "messages": lambda rng: [{"role": "user", "content": text(rng)}],
    "origin": lambda rng: {"file": text(rng), "line": rng.randrange(99)},
    "extra_info": lambda rng: rng.choice([None, {"index": rng.randrange(99), "split": "train", "question": text(rng)}]),
    "raw_prompt": lambda rng: "not the prompt",
    "images": lambda rng: None,
}


def text(rng: random.Random) -> str:
    return f"w{rng.randrange(10**6)} " + " ".join(rng.choices(WORDS, k=rng.randrange(8)))


def conversation(rng: random.Random) -> list[dict]:
    turns = [("user", "assistant")[turn % 2] for turn in range(rng.choice([1, 1, 3, 5]))]
    roles = ["system"] * rng.randrange(2) + turns
    return [{"role": role, "content": text(rng)} for role in roles]


def table(rng: random.Random, number: int) -> pa.Table:
    truth = rng.choice(
        [
            lambda: text(rng),
            lambda: [text(rng) for _ in range(rng.randrange(1, 4))],
            lambda: rng.randrange(-99, 99),
            lambda: rng.random(),
        ]
    )
    extra = rng.sample(sorted(EXTRA), k=rng.randrange(len(EXTRA)))
    id_of = rng.choice([None, None, lambda row: row, lambda row: f"id {row}"])
    source, content = [text(rng) for _ in range(3)], []
    for row in range(number):
        drawn = {"prompt": conversation(rng), "data_source": rng.choice(source)}
        drawn["reward_model"] = {"ground_truth": truth()} | ({"style": "rule"} if rng.random() < 0.5 else {})
        drawn |= {"query_id": id_of(row)} if id_of else {}
        content.append(drawn | {name: EXTRA[name](rng) for name in extra})
    rng.shuffle(columns := sorted({name for row in content for name in row}))
    drawn = pa.table({name: [row.get(name) for row in content] for name in columns})
    if rng.random() < 0.3:  # as pandas and polars write them
        strings = [pa.field(f.name, pa.large_string()) if pa.types.is_string(f.type) else f for f in drawn.schema]
        drawn = drawn.cast(pa.schema(strings))
    return drawn


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_model.train_tokenizer(["What is 1 + 1?"], vocabulary=512)


def trainer_of(config, tokenizer) -> R3Trainer:
    """With its data loaders and nothing else of what its constructor needs a cluster for."""
    trainer = object.__new__(R3Trainer)
    trainer.config, trainer.tokenizer, trainer.processor = config, tokenizer, None
    trainer.trainer_mode, trainer.parameter_sync_step, trainer.global_steps = "sync", 1, 1
    trainer.r3, trainer.planner, trainer.replay_buffer = config.algorithm.r3, None, SimpleNamespace()
    trainer._init_dataloader()
    return trainer


def batch_rows(batch) -> list[dict]:
    """As the rollout worker takes them out of the batch."""
    columns = {key: list(batch[key]) for key in ("raw_prompt", "reward_model", "data_source", "query_id", "uid")}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


SEEDS = int(os.environ.get("R3_DRAWN_FILES", 8))
"""More of them for a thorough check."""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_drawn_parquet_arrives_as_it_was_written(seed, tmp_path, tokenizer, monkeypatch):
    rng = random.Random(seed)
    number = rng.randrange(4, 40)
    written, path = table(rng, number), tmp_path / "drawn.parquet"
    pq.write_table(written, path, row_group_size=rng.choice([3, 1000]))
    other = written.slice(0, 1)
    pq.write_table(other, tmp_path / "val.parquet")
    assert rows.read(path).faults == []
    for name, value in {"DATA": path, "VAL_DATA": tmp_path / "val.parquet"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MODEL", str(tmp_path))
    monkeypatch.setattr(prepare, "exclude", lambda cache, val: [])  # what is left out is tested elsewhere
    prepared = prepare.model_and_data("embedded", tmp_path / "cache", {}, print)
    settings = ["data.max_prompt_length=4096", f"data.train_batch_size={number}", "data.dataloader_num_workers=0"]
    settings += [f"+data.cache_dir={tmp_path / 'verl'}", "algorithm.r3.reflection.enable=False"]
    config = compose_config(["+profile=embedded", "+method=r3", *prepared, *settings])
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    with open_dict(config):
        trainer = trainer_of(config, tokenizer)
    arrived = batch_rows(trainer._next_train_batch())

    def key(row: dict, prompt: str) -> tuple:
        truth = row["reward_model"]["ground_truth"]
        query_id = row.get("query_id", make_query_id(row[prompt], truth))
        return (
            repr([(turn["role"], turn["content"]) for turn in row[prompt]]),
            repr(truth),
            query_id,
            row["data_source"],
        )

    assert sorted(key(row, "raw_prompt") for row in arrived) == sorted(
        key(row, "prompt") for row in written.to_pylist()
    )
    assert len({row["uid"] for row in arrived}) == number, "verl's own, whatever the file holds"
