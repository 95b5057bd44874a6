"""`r3 rehearse`: the rows and the history of the worst step, and the command."""

import importlib
import json
import random

import pyarrow.parquet as parquet
import pytest
from pyarrow import Table
from tensordict import NonTensorData, NonTensorStack, TensorDict

from r3_ext import recipes
from r3_ext.cli import main
from r3_ext.data.problems import Problem
from r3_ext.data.write import to_row, write_rows
from r3_ext.hgpo.rehearse import endless
from r3_ext.hgpo.rehearse import plan as of_hgpo
from r3_ext.r3.rehearse import plan as of_r3
from r3_ext.rehearse import steps, weights
from r3_ext.rehearse.trainer import NAME, RehearsedMixin
from r3_ext.rrl.rehearse import plan as of_rrl
from r3_ext.settings import sizing
from r3_ext.settings.compose import compose_config
from r3_ext.tiny.tiny_model import train_tokenizer
from recipe.common.modes import SYNC
from recipe.hgpo.environments.base import STATE_KEYS, adapter, state_key
from recipe.hgpo.prompts import prompt_text
from recipe.r3.config.r3_config import ReflectionConfig
from recipe.r3.history.store import History
from recipe.r3.reflection import ReflectionPlanner
from tests.ext.rehearsed import DISTILL, GPU, embedded, too_little
from verl.trainer.ppo.v1 import trainer_base


@pytest.fixture(scope="module")
def tokenizer():
    texts = ["What is 12 + 7 * (3 - 1)? Let us see.", ReflectionConfig.template, ReflectionConfig.template_cut_off]
    return train_tokenizer(texts * 20, 600)


@pytest.fixture(autouse=True)
def model_has_it(tokenizer, monkeypatch):
    monkeypatch.setattr(steps, "tokenizer_of", lambda config: tokenizer)


@pytest.fixture(scope="module")
def count(tokenizer):
    def count(messages: list[dict]) -> int:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    return count


def user(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


# the worst step


@pytest.mark.parametrize("limit", [64, 257, 512, 1000])
def test_a_lengthened_prompt_has_exactly_the_tokens_of_the_limit(count, tokenizer, limit):
    messages = [{"role": "system", "content": "Be brief."}, *user("What is 12 + 7?")]
    long = steps.lengthened(messages, limit, count)
    assert count(long) == limit
    assert long[0] == messages[0] and long[1]["content"].startswith("What is 12 + 7?")


def test_where_no_filler_hits_the_limit_the_prompt_stays_below_it():
    def in_threes(messages):
        return 3 * -(-len(messages[0]["content"]) // 3)  # a tokenizer whose every count is a multiple of three

    assert in_threes(steps.lengthened(user("abc"), 100, in_threes)) == 99


def test_a_prompt_at_the_limit_is_left_alone(count):
    messages = user("What is 12 + 7?")
    assert steps.lengthened(messages, count(messages), count) == messages


def test_typical_steps_come_before_the_worst_and_train_the_same_problems_with_and_without_the_mechanisms():
    kinds, batches = steps.kinds_of(2, has_history=True), steps.batches_of(2, has_history=True)
    assert kinds == ["warm-up", "first", "first", "later", "grpo", "later", "grpo", "worst"]
    assert batches == [0, 1, 2, 0, 0, 1, 1]
    seen = set()
    for kind, batch in zip(kinds[:-1], batches, strict=True):
        assert (batch in seen) == (kind in ("later", "grpo"))
        seen.add(batch)


def test_caps_by_hand():
    config, r3 = embedded("algorithm.r3.replay.k=3", "algorithm.r3.reflection.max_fraction=0.3")
    # 16 prompts x 4; 4 of them reflected on; 3 rows for each of the 20 groups, all of which are ranked
    assert vars(of_r3.Caps.of(config, r3)) == {"fresh": 64, "reflection": 4, "replayed": 60, "ranked": 20}
    config, r3 = embedded("algorithm.r3.ranking.enable=False")
    assert vars(of_r3.Caps.of(config, r3)) == {"fresh": 64, "reflection": 4, "replayed": 20, "ranked": 0}
    off = [f"algorithm.r3.{name}.enable=False" for name in ("replay", "reflection", "ranking")]
    config, r3 = embedded(*off)
    assert vars(of_r3.Caps.of(config, r3)) == {"fresh": 64, "reflection": 0, "replayed": 0, "ranked": 0}


def test_where_groups_wait_for_the_next_step_the_worst_one_is_given_the_most_that_can_wait():
    config, r3 = embedded("algorithm.r3.reflection.when=next_step")
    assert of_r3.holds(r3)
    assert steps.kinds_of(1, has_history=True, holds=True)[-3:] == ["grpo", "held", "worst"]
    # 16 groups and the 4 that waited, of 4 answers each; whatever else is found is found for 16 groups and 4.
    assert vars(of_r3.Caps.of(config, r3)) == {"fresh": 80, "reflection": 4, "replayed": 20, "ranked": 24}
    for settings in (["algorithm.r3.reflection.when=at_once"], ["algorithm.r3.reflection.enable=False"]):
        assert not of_r3.holds(embedded(*settings)[1])


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """40 problems in verl's format."""
    file = tmp_path_factory.mktemp("data") / "train.parquet"
    problems = [Problem(f"What is {number} + {number}?", str(2 * number), "sums", number) for number in range(40)]
    write_rows(file, [to_row(problem, "sums", "train") for problem in problems])
    return file


@pytest.mark.parametrize("with_ids", [True, False])
def test_the_planner_and_the_history_find_the_worst_case(tmp_path, rows, tokenizer, count, with_ids):
    """Real planner, real history: as many reflection prompts as the cap allows, at the limit, and an answer for each
    group."""
    file = rows
    if not with_ids:
        file = tmp_path / "plain.parquet"
        parquet.write_table(parquet.read_table(rows).drop_columns(["query_id"]), file)
    at = "algorithm.r3.reflection.when=next_visit"
    config, r3 = embedded(f"data.train_files={file}", "algorithm.r3.replay.k=2", "data.max_response_length=48", at)
    data = steps.Data(config, 1)
    reflected, others, cut_off = of_r3.worst(data, r3)
    data.write(tmp_path, steps.batches_of(1, has_history=True), reflected, others)
    written = parquet.read_table(tmp_path / "steps.parquet").to_pylist()
    assert len(written) == 5 * 16 and ("query_id" in written[0]) == with_ids
    worst = written[-16:]
    lengths = [count(row["prompt"]) for row in worst]
    assert lengths[4:] == [512] * 12 and all(256 < length < 512 for length in lengths[:4])
    assert {row["reward_model"]["ground_truth"] for row in worst} == {of_r3.NO_ANSWER}

    ids = [data.query_id(row) for row in worst]
    path = str(tmp_path / "history.sqlite")
    of_r3.plant(path, config, r3, ids[:4], ids[4:], cut_off, list(range(300, 340)))
    history = History(path, r3.history.max_per_outcome)
    planner = ReflectionPlanner(r3.reflection, history, tokenizer, {}, "single_turn_agent", 16, 512, seed=0)
    columns = {"query_id": ids, "raw_prompt": [row["prompt"] for row in worst], "uid": ids}
    columns = {
        name: NonTensorStack.from_list([NonTensorData(value) for value in values]) for name, values in columns.items()
    }
    batch, metrics = planner.augment(TensorDict(columns, batch_size=16), step=5)
    assert metrics["reflection/prompts"] == 4 == of_r3.Caps.of(config, r3).reflection
    assert all(500 <= count(list(prompt)) <= 512 for prompt in list(batch["raw_prompt"])[16:])
    for query_id in ids:
        samples = history.draw(query_id, correct=True, k=2, rng=random.Random(0))
        assert [len(sample.tokens) for sample in samples] == [48, 48]
    history.close()


@pytest.mark.parametrize("when", ["at_once", "next_step"])
def test_asked_sooner_no_query_of_the_worst_step_is_hard_by_its_history_and_each_has_a_right_answer(
    tmp_path, rows, tokenizer, when
):
    config, r3 = embedded(f"data.train_files={rows}", f"algorithm.r3.reflection.when={when}")
    data = steps.Data(config, 1)
    reflected, others, cut_off = of_r3.worst(data, r3)
    ids = [data.query_id(row) for row in (*reflected, *others)]
    path = str(tmp_path / "history.sqlite")
    of_r3.plant(path, config, r3, ids[:4], ids[4:], cut_off, list(range(300, 340)))
    history = History(path, r3.history.max_per_outcome)
    planner = ReflectionPlanner(r3.reflection, history, tokenizer, {}, "single_turn_agent", 16, 512, seed=0)
    columns = {"query_id": ids, "raw_prompt": [row["prompt"] for row in (*reflected, *others)], "uid": ids}
    columns = {
        name: NonTensorStack.from_list([NonTensorData(value) for value in values]) for name, values in columns.items()
    }
    _, metrics = planner.augment(TensorDict(columns, batch_size=16), step=5)
    assert metrics["reflection/prompts"] == metrics["reflection/hard_queries"] == 0
    assert all(history.draw(query_id, correct=True, k=1, rng=random.Random(0)) for query_id in ids)
    history.close()


@pytest.mark.parametrize("with_ids", [True, False])
def test_the_held_step_asks_problems_of_its_own_that_no_answer_solves(tmp_path, rows, with_ids):
    file = rows
    if not with_ids:
        file = tmp_path / "plain.parquet"
        parquet.write_table(parquet.read_table(rows).drop_columns(["query_id"]), file)
    config, r3 = embedded(f"data.train_files={file}", "algorithm.r3.reflection.when=next_step")
    data = steps.Data(config, 1)
    parts = [of_r3.worst(data, r3, kind)[:2] for kind in (steps.HELD, steps.WORST)]
    held, worst = ([data.query_id(row) for rows in part for row in rows] for part in parts)
    assert len({*held, *worst}) == 32
    data.write(tmp_path, steps.batches_of(1, has_history=True), *parts[0], *parts[1])
    written = parquet.read_table(tmp_path / "steps.parquet").to_pylist()
    assert [data.query_id(row) for row in written[-32:]] == [*held, *worst]
    assert {row["reward_model"]["ground_truth"] for row in written[-32:-16]} == {of_r3.NO_ANSWER + "1"}


def test_too_few_problems_are_told(rows):
    config, r3 = embedded(f"data.train_files={rows}", "data.train_batch_size=64")
    with pytest.raises(ValueError, match="40 prompts .* are fewer than data.train_batch_size=64"):
        steps.Data(config, 1)


# other recipes


def test_the_worst_step_of_one_turn_has_prompts_at_their_limit_and_no_restarts(tmp_path, rows):
    config = compose_config(["+profile=embedded", "+method=rrl", f"data.train_files={rows}"])
    found = of_rrl.prepare(config, tmp_path, 2)
    assert found == steps.Plan(
        ["warm-up", "first", "first", "worst"],
        40,
        {"fresh": 64},
        ("algorithm.rrl.restarts.share=0", "trainer.critic_warmup=0"),
    )
    data, written = steps.Data(config, 2), parquet.read_table(tmp_path / steps.STEPS).to_pylist()
    assert len(written) == 4 * 16
    assert {data.count(row["prompt"]) for row in written[-16:]} == {512}
    assert max(data.count(row["prompt"]) for row in written[:-16]) < 100
    config.data.train_max_samples = 30
    assert data.problems == 30, "of the run, and its epochs have so many"
    config.algorithm.rrl.states.reference = "solutions"
    with pytest.raises(ValueError, match="states.reference must be a column"):  # what the run would not take
        of_rrl.prepare(config, tmp_path, 2)


def test_the_worst_step_of_sessions_plays_a_world_without_an_end(tmp_path):
    turn = [{"role": "user", "content": "Play."}]
    rows = [{"prompt": turn, "task": {"world": "textworld", "game": f"{number}.z8"}} for number in range(40)]
    parquet.write_table(Table.from_pylist(rows), tmp_path / "games.parquet")
    world = ["+world=textworld", "actor_rollout_ref.rollout.multi_turn.max_assistant_turns=7"]
    config = compose_config(["+method=hgpo", *world, "+profile=embedded", f"data.train_files={tmp_path}/games.parquet"])
    config.data.train_batch_size, config.actor_rollout_ref.rollout.n = 8, 4
    found = of_hgpo.prepare(config, tmp_path, 1)
    assert found == steps.Plan(["warm-up", "first", "worst"], 40, {"fresh": 8 * 4 * 7})
    tasks = [row["task"] for row in parquet.read_table(tmp_path / steps.STEPS).to_pylist()]
    assert [task["world"] for task in tasks] == ["textworld"] * 16 + [endless.WORLD] * 8
    data = steps.Data(config, 1)
    for task in tasks[-8:]:
        world = adapter(task["world"])(task)
        played = [world.step("walk on") for _ in range(99)]
        assert not any(step.done or step.won or step.reward for step in played)
        seen = [world.reset(), *(step.observation for step in played)]
        longest = config.data.max_prompt_length
        for shown in seen:
            text = prompt_text("Play.", (), shown.text, shown.commands)
            assert longest - 32 <= data.count([{"role": "user", "content": text}]) <= longest
        assert all(len({state_key(shown, kind) for shown in seen}) == 100 for kind in STATE_KEYS)
        other = adapter(task["world"])(task)
        assert other.reset() == seen[0] and other.step("walk on").observation.text != seen[1].text


@pytest.mark.parametrize("name", ["r3", "hgpo", "rrl"])
def test_a_recipe_is_rehearsed_on_its_own_trainer_whose_phases_are_there(name, monkeypatch):
    monkeypatch.delitem(trainer_base.TRAINER_REGISTRY, NAME, raising=False)  # a process imports one of them
    module = importlib.import_module(f"{recipes.RECIPES[name].rehearsal}.trainer")
    [trainer] = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and issubclass(kind, RehearsedMixin)
    ]
    own = trainer_base.get_trainer_cls(name)
    assert issubclass(trainer, own) and trainer.MODE == SYNC
    extended = {method for method in vars(RehearsedMixin) if method.startswith(("_compute", "_update", "on_", "_val"))}
    assert len(extended) > 7 and all(hasattr(own, method) for method in extended)


# the command


def test_what_cannot_be_rehearsed_is_refused(tmp_path, capsys):
    base = ["rehearse", "--profile", "embedded", "--outputs", str(tmp_path / "out")]
    assert main([*base, "--method", "grpo"]) == 2
    assert "GRPO's steps beside those of r3" in capsys.readouterr().out
    assert main([*base, "--repeat", "0"]) == 2
    assert "--repeat must be more than 0" in capsys.readouterr().out
    assert main([*base, "--memory", "-3"]) == 2
    assert not (tmp_path / "out").exists()


def test_a_budget_too_small_is_told_before_anything_is_loaded(tmp_path, rows, monkeypatch, capsys):
    """With the config of a model only: its weights are not even made."""
    model = tmp_path / "model"
    model.mkdir()
    content = {"model_type": "qwen2", "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12}
    content |= {"num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151936, "head_dim": 128}
    (model / "config.json").write_text(json.dumps(content))
    for name, value in {"DATA": rows, "VAL_DATA": rows, "MODEL": model}.items():
        monkeypatch.setenv(name, str(value))
    val = tmp_path / "val.parquet"
    write_rows(val, [to_row(Problem("What is 1000 + 1?", "1001", "sums", 0), "sums", "test")])
    monkeypatch.setenv("VAL_DATA", str(val))
    arguments = ["--outputs", str(tmp_path / "out"), "--cache", str(tmp_path / "cache"), "--memory", str(too_little())]
    assert main(["rehearse", "--profile", "gpu_8x80gb", *arguments, *GPU[2:]]) == 1
    told = capsys.readouterr().out
    assert "does not fit: computed" in told and "what would fit, computed: " in told
    fit = told.split("what would fit, computed: ")[1].split("\n")[0].split()
    config = compose_config([*GPU, *fit])
    assert sizing.plan(config, DISTILL, too_little()).fits
    assert not list((tmp_path / "cache").glob("random-*"))


def test_random_weights_have_the_shape_of_the_config_and_are_made_once(tmp_path, tokenizer):
    from transformers import AutoModelForCausalLM, Qwen2Config

    model = tmp_path / "model"
    config = Qwen2Config(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    config.save_pretrained(model)
    tokenizer.save_pretrained(model)
    assert weights.lacks_weights(str(model)) and not weights.lacks_weights("org/name")
    made = weights.random_weights(str(model), tmp_path / "cache")
    assert not weights.lacks_weights(str(made))
    parameters = AutoModelForCausalLM.from_pretrained(made).num_parameters()
    assert parameters == AutoModelForCausalLM.from_config(config).num_parameters()
    stamp = (made / "config.json").stat().st_mtime_ns
    assert weights.random_weights(str(model), tmp_path / "cache") == made
    assert (made / "config.json").stat().st_mtime_ns == stamp
