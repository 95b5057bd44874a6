"""Sessions as a person can read them: which ones, what stands in them, and what a step leaves in the file."""

import json

import pytest
import torch

from recipe.common import queue
from recipe.common.queue import KVBatchMeta
from recipe.hgpo import episodes
from recipe.hgpo.config.hgpo_config import HGPOConfig
from recipe.hgpo.config.names import INADMISSIBLE
from recipe.hgpo.core_algos import compute_hgpo_advantage, discounted_returns
from recipe.hgpo.episodes import Read
from recipe.hgpo.prompts import last_seen, prompt_text
from recipe.hgpo.turns import ENDED, WON, Turn


def turns_of(uid: str, *sessions: tuple[str, float]) -> list[Turn]:
    """Sessions by the letters of their states, and the reward of the last turn."""
    return [
        Turn(
            state,
            reward * (at == len(states) - 1),
            end="" if at < len(states) - 1 else WON if reward else ENDED,
            **{"uid": uid, "session": number, "index": at},
        )
        for number, (states, reward) in enumerate(sessions)
        for at, state in enumerate(states)
    ]


ALIKE = turns_of("a", ("PQ", 10.0), ("PV", 10.0))
MIXED = turns_of("b", ("PQR", 10.0), ("PQ", 0.0), ("PV", 4.0))


@pytest.mark.parametrize(
    ("step", "test_freq", "due"), [(1, -1, True), (1, 5, True), (2, 5, False), (10, 5, True), (10, -1, False)]
)
def test_sessions_are_written_in_the_first_step_and_as_often_as_there_is_validation(step, test_freq, due):
    assert episodes.is_due(step, test_freq) == due


def test_the_best_and_the_worst_session_of_the_first_task_that_tells_them_apart():
    assert episodes.chosen([*ALIKE, *MIXED]) == (MIXED, [0, 1])
    assert episodes.chosen(ALIKE) == (ALIKE, [0, 1])
    assert episodes.chosen(ALIKE[:2]) == (ALIKE[:2], [0]), "one session is told once"


def test_what_a_turn_was_compared_with_by_level():
    hgpo = HGPOConfig(gamma=0.5, norm="mean_norm", depth=1, penalise="inadmissible", penalty=1.0)
    group = [*MIXED[:3], Turn(**{**vars(MIXED[3]), "answer": INADMISSIBLE}), *MIXED[4:]]
    read = {f"b_{t.session}_{t.index}": Read(f"room {t.state}", "go", 0.25) for t in group}
    [best, worst] = episodes.told(group[::-1], [0, 1], read, hgpo)
    assert [best["end"], worst["end"]] == [WON, ENDED]
    # Returns of P: 2.5, 0 less the penalty of 1, and 2: their mean is 7/6.
    assert best["turns"][0] == {
        **{"seen": "room P", "said": "go", "answer": "valid", "reward": 0.0, "return": 2.5, "advantage": 0.25},
        "levels": [{"size": 3, "sessions": 3, "advantage": pytest.approx(2.5 - 3.5 / 3)}, None],
    }
    assert best["turns"][1]["levels"][1] == {"size": 2, "sessions": 2, "advantage": 2.5}
    assert best["turns"][2]["levels"] == [{"size": 1, "sessions": 1, "advantage": None}] * 2
    assert (worst["turns"][0]["return"], worst["turns"][0]["answer"]) == (-1.0, INADMISSIBLE)


def test_weighed_together_the_levels_are_the_advantage():
    hgpo = HGPOConfig(norm="mean_norm")
    read = {f"b_{t.session}_{t.index}": Read("", "", 0.0) for t in MIXED}
    [best, _] = episodes.told(MIXED, [0, 1], read, hgpo)
    names = [turn.session for turn in MIXED], [turn.index for turn in MIXED]
    returns = discounted_returns([turn.reward for turn in MIXED], *names, hgpo.gamma)
    whole = compute_hgpo_advantage(returns, [t.state for t in MIXED], ["b"] * 7, *names, 2, norm="mean_norm")
    for turn, advantage in zip(best["turns"], whole[:3], strict=True):
        spoken = [(k + 1, of["advantage"]) for k, of in enumerate(turn["levels"]) if of and of["advantage"] is not None]
        weight = sum(weight for weight, _ in spoken)
        assert advantage == pytest.approx(sum(weight * value for weight, value in spoken) / weight if weight else 0.0)


@pytest.mark.parametrize("commands", [("look", "go east"), None])
def test_what_was_seen_last_is_found_in_a_prompt_of_any_template(commands):
    text = prompt_text("Eat.", [("A shelf.", "go west"), ("A door.", "open door")], "A table.", commands)
    shown = "A table." if commands is None else "A table.\nYou can: look; go east"
    assert last_seen(text) == last_seen(f"system\nYou play.\nuser\nTask: no\n{text}"[18:]) == shown
    assert last_seen(prompt_text("Eat.", [], "A table.", commands)) == shown
    assert last_seen(f"user\n{text}\nassistant\n").startswith(shown)


class Letters:
    """A tokenizer of one character a token."""

    def decode(self, ids, skip_special_tokens: bool) -> str:
        return "".join(map(chr, ids.tolist()))


def test_a_step_leaves_a_line_with_the_advantages_that_are_trained(transfer_queue, tmp_path):
    keys = [f"{turn.uid}_{turn.session}_{turn.index}" for turn in MIXED]

    def ids(text: str) -> torch.Tensor:
        return torch.tensor([*map(ord, text)])

    rows = [
        {
            **{"prompts": ids(f"Task: Eat.\nroom {turn.state}"), "responses": ids("go" * (1 + turn.index))},
            "raw_prompt": [{"role": "user", "content": "Eat."}],
            "advantages": torch.tensor([0.0, 0.5 + turn.index]),
            "response_mask": torch.tensor([0, 1]),
            "extra_fields": {"turn": turn.to_field()},
        }
        for turn in MIXED
    ]
    keys, rows = [*keys, "pad_0_0"], [*rows, rows[0]]
    tags = [{"is_padding": key == "pad_0_0"} for key in keys]
    queue.write(queue.TRAIN, keys, rows, tags)
    batch = KVBatchMeta(partition_id=queue.TRAIN, keys=keys, tags=tags, extra_info={})
    hgpo = HGPOConfig(episodes=str(tmp_path / "new" / "episodes.jsonl"))
    for step in (1, 2, 5):
        episodes.write_down(batch, hgpo, Letters(), step, test_freq=5)
    lines = [json.loads(line) for line in open(hgpo.episodes)]
    assert [line["step"] for line in lines] == [1, 5] and lines[0]["task"] == "Eat."
    [best, worst] = lines[0]["sessions"]
    assert [turn["advantage"] for turn in best["turns"]] == [0.5, 1.5, 2.5]
    assert [(turn["seen"], turn["said"]) for turn in worst["turns"]] == [("room P", "go"), ("room Q", "gogo")]
