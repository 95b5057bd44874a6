"""`r3 probe`: what the command refuses, each in a sentence, and what it settles on."""

import pytest

from r3_ext.cli import main
from r3_ext.r3.probe import command

NAIVE = "--profile embedded reward.reward_manager.source=register reward.reward_manager.name=naive"


async def later(data_source, solution_str, ground_truth, extra_info):
    return 1.0


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--profile embedded --samples 1", "--samples must be at least 2, got 1"),
        ("--profile embedded --samples 3", "algorithm.r3.reflection.min_attempts: 4 attempts"),
        ("--profile embedded --problems 0", "--problems must be at least 1, got 0"),
        ("--profile embedded --seed -1", "--seed must be at least 0, got -1"),
        ("--profile embedded --max-tokens 0", "--max-tokens must be at least 1, got 0"),
        ("--profile embedded --max-tokens 65", "actor_rollout_ref.rollout.max_model_len: 576 is below"),
        ("--profile embedded --model m", "--data is missing"),
        ("--profile gpu_1x80gb --data d", "--model is missing"),
        ("--profile gpu_1x80gb", "--model is missing"),
        ("--profile gpu_1x80gb --model m --data d --world mistaken=0", "--world concerns the tiny model"),
        ("--profile embedded --world mistaken=2", "--world mistaken must be from 0 to 1"),
        ("--profile embedded --world seed=3", "seed is given twice"),
        ("--profile nope", "--profile must be one of"),
        ("--profile embedded algorithm.r3.repaly.k=1", "there is no setting algorithm.r3.repaly.k"),
        ("--profile embedded algorithm.r3.ranking.top_ratio=2", "algorithm.r3.ranking.top_ratio must be in (0, 1]"),
        ("--profile embedded reward.custom_reward_function.path=f.py", "f.py cannot be loaded"),
        (NAIVE, "or a function"),
        (f"--profile embedded reward.reward_manager.module.path={__file__}", "or a function"),
        (
            f"{NAIVE} reward.custom_reward_function.path={__file__} reward.custom_reward_function.name=later",
            "coroutine",
        ),
        ("--profile embedded data.prompt_key=messages", "data.prompt_key=messages: a probe knows prompt only"),
        ("--profile embedded actor_rollout_ref.rollout.top_k=20", "a probe knows -1 only"),
        ("--profile embedded --out others", "others holds mine.txt and no probe"),
        ("--profile embedded --out file", "is a file"),
        ("check --add others", "name folders of finished probes"),
        ("check --add foreign", "lacks cost, figures, foresight, r3, settings, verdicts"),
        ("check --out empty", "holds no verdict"),
    ],
)
def test_a_wrong_input_is_told_in_a_sentence(line, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("MODEL", "DATA", "R3_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "probe.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    assert main(["probe", *line.split()]) == 2
    told = capsys.readouterr().err
    assert sentence in told and "Traceback" not in told
    assert sorted(tmp_path.rglob("*")) == before


def test_a_seed_is_a_world_as_in_a_cell_of_a_study(monkeypatch):
    for name in ("MODEL", "DATA", "R3_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    args = command.parse(["--profile", "embedded", "--world", "reflection=0", "--seed", "2"])
    command.settle(args)
    assert args.world == "reflection=0,seed=2"
    args = command.parse(["--profile", "embedded", "--model", "m", "--data", "d", "data.train_batch_size=8"])
    config = command.settle(args)
    assert args.world is None and config.data.train_batch_size == 8
