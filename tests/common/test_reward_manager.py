"""The reward manager: what verl gets back for a response, and what is refused."""

import asyncio
import json

import numpy as np
import pytest
import torch
from reward_workers import (
    EOS,
    MAX_RESPONSE_LENGTH,
    OWN,
    agent_loop_row,
    make_worker,
    score,
    write_tokenizer,
)
from tensordict import TensorDict

from recipe.common.outcome import Reading
from recipe.common.reward.judge import question
from recipe.common.reward.manager import R3RewardManager, RewardConfig, check_grader, length_bonus
from recipe.common.reward.math import pool as grader_pool
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager


def boxed(answer: str) -> str:
    return f"So the answer is \\boxed{{{answer}}}."


def test_a_grader_that_cannot_tell_right_from_wrong_stops_the_run(tmp_path, monkeypatch):
    (tmp_path / "math_verify").mkdir()
    (tmp_path / "math_verify/__init__.py").write_text("parse = LatexExtractionConfig = verify = lambda *_, **__: []")
    (tmp_path / "math_verify/parser.py").write_text("NormalizationConfig = dict")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(grader_pool, "_pool", grader_pool.GraderPool())
    with pytest.raises(RuntimeError, match=r"grader says False for .* against 0\.5, expected True: reinstall"):
        check_grader(num_workers=1)
    grader_pool._pool.close()


def test_length_bonus_of_the_paper():
    assert length_bonus(8192, 32768) == 0.75  # paper: R = 1.75 for a correct answer of this length
    assert length_bonus(32768, 32768) == length_bonus(40000, 32768) == 0.0


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"length_bonus_max_tokens": 0}, r"reward\.reward_kwargs\.length_bonus_max_tokens must be > 0, got 0"),
        ({"length_bonus": "yes"}, r"reward\.reward_kwargs\.length_bonus must be true or false, got 'yes'"),
        ({"grader_timeout_s": float("nan")}, r"reward\.reward_kwargs\.grader_timeout_s must be > 0, got nan"),
        ({"grader_workers": True}, r"reward\.reward_kwargs\.grader_workers must be >= 1, got True"),
        (5, r"reward\.reward_kwargs must be a group of settings, got 5"),
        ({"lenght_bonus": True}, r"reward\.reward_kwargs\.lenght_bonus is unknown, expected one of: length_bonus,"),
    ],
)
def test_bad_settings_are_refused_by_their_full_name(kwargs, message):
    with pytest.raises(ValueError, match=message):
        RewardConfig.from_reward_kwargs(kwargs)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def reward_worker(tokenizer):
    """verl's own reward worker, which loads the manager from the configuration."""
    worker = make_worker(
        tokenizer,
        *OWN,
        "+reward.reward_kwargs={length_bonus: true, length_bonus_max_tokens: 128, grader_timeout_s: 1.0}",
    )
    assert isinstance(worker.reward_manager, R3RewardManager)
    return worker


def test_a_correct_response_earns_one_and_the_bonus(reward_worker):
    result = score(reward_worker, r"yes: \boxed{2+x}.".ljust(31), "x+2")  # 31 bytes and the end token, of 128
    info = {"acc": 1.0, "length_bonus": 0.75, "truncated": 0.0, "response_length": 32, "reward_error": 0.0}
    assert result == {"reward_score": 1.75, "reward_extra_info": info}


def test_a_wrong_response_earns_nothing_and_a_timeout_is_counted(reward_worker):
    wrong, endless = (score(reward_worker, boxed(answer), "2") for answer in ("y", "9^{9^{9^9}}"))
    assert wrong["reward_score"] == endless["reward_score"] == 0.0
    assert [r["reward_extra_info"]["reward_error"] for r in (wrong, endless)] == [0.0, 1.0]
    assert wrong["reward_extra_info"]["length_bonus"] == 0.0


def test_truncated_means_full_length_without_an_end_token(reward_worker):
    full, cut = "x" * (MAX_RESPONSE_LENGTH - 9) + r"\boxed{5}", "x" * (MAX_RESPONSE_LENGTH - 8) + r"\boxed{5"
    for response, ended, truncated, acc in [(full, False, 1, 1), (cut, False, 1, 0), (full[1:], True, 0, 1)]:
        info = score(reward_worker, response, 5, ended=ended)["reward_extra_info"]
        assert (info["truncated"], info["acc"], info["response_length"]) == (truncated, acc, MAX_RESPONSE_LENGTH)
    assert score(reward_worker, "stopped early", 5, ended=False)["reward_extra_info"]["truncated"] == 0


def write_function(folder, *body: str) -> str:
    """The override that names a reward function with that body."""
    lines = [
        "def compute_score(data_source, solution_str, ground_truth, extra_info):",
        *(f"    {line}" for line in body),
    ]
    (folder / "mine.py").write_text("\n".join(lines))
    return f"reward.custom_reward_function.path={folder / 'mine.py'}"


def test_a_reward_function_scores_as_in_verls_own_manager_and_says_more(tokenizer, tmp_path):
    named = write_function(
        tmp_path,
        "if solution_str == 'bad': raise ValueError(solution_str)",
        "assert {'num_turns', 'rollout_reward_scores'} <= extra_info.keys()",
        "return {'score': len(solution_str) / 8, 'acc': solution_str == ground_truth}",
    )
    r3 = make_worker(*(tokenizer, named, "+reward.reward_kwargs={length_bonus: false, correct_from: 1.0}"), *OWN)
    verls = make_worker(tokenizer, named)
    assert not isinstance(verls.reward_manager, R3RewardManager)
    try:
        for response, truth, acc in (("right", "right", 1.0), ("wrong", "right", 0.0), ("", "right", 0.0)):
            ours, theirs = (score(worker, response, truth) for worker in (r3, verls))
            assert ours["reward_score"] == theirs["reward_score"] == len(response) / 8
            info = ours["reward_extra_info"]
            assert (info["acc"], info["score"], info["reward_error"]) == (acc, len(response) / 8, 0.0)
        failed = score(r3, "bad", "bad")
        assert failed["reward_score"] == 0.0
        assert (failed["reward_extra_info"]["acc"], failed["reward_extra_info"]["reward_error"]) == (0.0, 1.0)
    finally:
        r3.reward_manager.judges.close()


def test_a_reward_function_means_the_same_under_each_manager(tokenizer, tmp_path):
    """What it returns is the response; verl's dapo takes a penalty of it for being overlong."""
    named = write_function(tmp_path, "import numpy as np", "return eval(solution_str)")
    overlong = "overlong_buffer_cfg: {enable: true, len: 64, penalty_factor: 0.5, log: false}, max_resp_len: 64"
    workers = [
        make_worker(tokenizer, named, *settings)
        for settings in (
            [*OWN, "+reward.reward_kwargs={length_bonus: false, correct_from: 0}"],
            [],
            ["reward.reward_manager.name=dapo", f"+reward.reward_kwargs={{{overlong}}}"],
        )
    ]
    own = workers[0].reward_manager
    assert [type(worker.reward_manager) for worker in workers] == [
        *(R3RewardManager, NaiveRewardManager, DAPORewardManager)
    ]
    cases = {
        "{'score': 3, 'acc': 1}": (5.0, True),
        "{'score': 3.0, 'acc': np.True_}": (5.0, True),
        "{'score': 3, 'acc': None}": (5.0, False),
        "{'score': -1, 'acc': 0}": (0.0, False),
        "{'score': -1.0, 'acc': np.False_}": (-2.0, False),
        "{'score': -1.0, 'acc': 0.0}": (-0.5, False),
        "{'score': 1.0}": (1.0, True),
        "{'score': 0.9, 'depth': 3}": (1.0, False),
        "1.0": (1.0, True),
        "np.float32(0.5)": (0.5, True),
        "-1": (0.0, False),
        "True": (1.0, True),
        "False": (1.0, False),
        "np.True_": (5.0, False),
    }
    try:
        for response, (correct_from, correct) in cases.items():
            own.correct_from, grades, rewards = correct_from, set(), []
            for worker in workers:
                result = score(worker, response, "")
                row = {"extra_fields": result, "rm_scores": torch.tensor([result["reward_score"]])}
                reading = Reading(correct_from, MAX_RESPONSE_LENGTH, EOS)
                tag = reading.tag({**row, "responses": torch.tensor([EOS])}, "q")
                assert tag.correct is correct, (response, worker.reward_manager)
                grades.add(tag.grade)
                rewards.append(tag.score)
            assert len(grades) == 1 and rewards[2] < rewards[1] == rewards[0], response
    finally:
        own.judges.close()


@pytest.mark.parametrize("ground_truth", ["0.5", 0.5, ["7", r"\frac12"], np.array([7, 0.5])])
def test_any_of_the_accepted_answers_will_do(reward_worker, ground_truth):
    assert score(reward_worker, boxed("1/2"), ground_truth)["reward_extra_info"]["acc"] == 1.0


@pytest.mark.parametrize("ground_truth", [None, "", [], [None], float("nan"), {"value": "5"}, True, ["5", ""]])
def test_a_missing_ground_truth_is_an_error_and_no_zero_reward(reward_worker, ground_truth):
    with pytest.raises(ValueError, match=r"reward_model\.ground_truth must be an answer"):
        score(reward_worker, boxed("1"), ground_truth)


def test_padding_does_not_count_when_verl_gives_no_length(reward_worker):
    data = agent_loop_row(reward_worker, boxed("5"), "5")
    padded = {key: torch.nn.functional.pad(data.batch[key], (0, 7)) for key in data.batch.keys() if key != "prompts"}
    batch = TensorDict({"prompts": data.batch["prompts"]} | padded, batch_size=1)
    row = DataProto(batch=batch, non_tensor_batch={"reward_model": data.non_tensor_batch["reward_model"]})
    info = asyncio.run(reward_worker.compute_score(row))["reward_extra_info"]
    assert (info["response_length"], info["acc"]) == (data.batch["responses"].shape[1], 1.0)


def test_a_function_may_send_what_it_is_told_as_json():
    row = {"data_source": "s", "extra_info": {"index": 3}, "__num_turns__": np.array([2])[0]}
    assert json.loads(json.dumps(question(row, "r"))) == [
        *("s", "r", None),
        {"index": 3, "num_turns": 2, "rollout_reward_scores": {}},
    ]
    assert question({}, "r")[3]["num_turns"] is None
