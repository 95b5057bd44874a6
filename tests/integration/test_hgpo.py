"""HGPO through the real trainer: what the workers receive, verl's GRPO as a special case, resume, and bad worlds."""

import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3_ext.worlds import warm_start
from r3_ext.worlds.lists import Games
from recipe.common.config.verl_rules import ENVIRONMENT, MODULES
from recipe.hgpo.advantages import step_advantages
from recipe.hgpo.config.hgpo_config import HGPOConfig
from recipe.hgpo.core_algos import compute_hgpo_advantage
from recipe.hgpo.turns import Turn

from . import recorded_sessions
from .conftest import Run, assert_equal_weights, received_rows, rows_override
from .crash import SIGTERM, Crash
from .equal_runs import assert_equal_runs

pytestmark = pytest.mark.integration
STEPS, PROMPTS, N = 3, 4, 4
CRAWL = [
    *(f"data.train_batch_size={PROMPTS}", f"actor_rollout_ref.rollout.n={N}"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=1", "actor_rollout_ref.rollout.multi_turn.max_assistant_turns=6"),
]
OURS = "recipe.hgpo.hgpo_trainer", "recipe.hgpo.agent_loop"
VERLS = ("recipe.hgpo.agent_loop",)
SAME = (
    *("actor/pg_loss", "actor/grad_norm", "actor/ppo_kl", "actor/entropy"),
    *("critic/advantages/max", "critic/advantages/min", "critic/score/max"),
)


@dataclass
class Player:
    """A tiny model that saw little, and four games."""

    model: Path
    train: Path
    val: Path

    def plays(self, train: Path | None = None, val: Path | None = None) -> list[str]:
        files = f"data.train_files={train or self.train}", f"data.val_files={val or self.val}"
        return [f"actor_rollout_ref.model.path={self.model}", *files]


@pytest.fixture(scope="session")
def player(tmp_path_factory) -> Player:
    games = Games(train=PROMPTS, val=1, levels=(2, 3))
    return Player(*warm_start.prepare(tmp_path_factory.mktemp("games"), games=games, steps=60, skill=0.9))


@pytest.fixture(scope="session")
def recording(player, tmp_path_factory) -> Path:
    """Filled by the run `hgpo`, the first that plays."""
    return tmp_path_factory.mktemp("sessions")


def replays(folder: Path, modules: tuple[str, ...]) -> list[str]:
    """Overrides: sessions come from the folder, or go there."""
    own = Path(recorded_sessions.__file__)
    names = ",".join(["r3_ext.cpu.plugin", *modules, recorded_sessions.__name__])
    sampler = "trainer.v1.sampler.custom_sampler"
    return [
        *(f"{MODULES}='{names}'", f"+{ENVIRONMENT}.{recorded_sessions.FOLDER}={folder}"),
        *(f"{sampler}.path={own}", f"{sampler}.name={recorded_sessions.InOrder.__name__}"),
    ]


@pytest.fixture(scope="session")
def rows_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="session")
def hgpo(train, player, recording, rows_folder) -> Run:
    """HGPO as it comes, its sessions written down, and what the workers received."""
    settings = [*CRAWL, *player.plays(), "trainer.save_freq=1"]
    return train("hgpo", "hgpo", *settings, *replays(recording, OURS), rows_override(rows_folder))


def turns_of(sessions: list[dict]) -> list[Turn]:
    return [
        Turn.of(f"{session['uid']}_{session['session']}_{index}", output.extra_fields)
        for session in sessions
        for index, output in enumerate(session["outputs"])
    ]


def received(folder: Path, step: int) -> dict[tuple[str, int], list[float]]:
    """Advantages of the rows of each session that a step trained, by size, padding left out."""
    found = defaultdict(list)
    for ranks in received_rows(folder, step):
        for row in (row for rows in ranks for row in rows):
            if row["tokens"]:
                found[row["uid"], row["session"]].append(row["advantage"])
    return {session: sorted(values) for session, values in found.items()}


def by_session(turns: list[Turn], advantages) -> dict[tuple[str, int], list[float]]:
    found = defaultdict(list)
    for turn, advantage in zip(turns, advantages, strict=True):
        found[turn.trajectory].append(float(advantage))
    return {session: sorted(values) for session, values in found.items()}


def test_the_rows_that_workers_received_carry_what_the_pure_function_gives(hgpo, recording, rows_folder):
    for step in range(1, STEPS + 1):
        turns = turns_of([each for each in recorded_sessions.sessions(recording) if each["step"] == step])
        expected, _ = step_advantages(turns, HGPOConfig())
        ours, theirs = by_session(turns, expected), received(rows_folder, step)
        assert ours.keys() == theirs.keys() and len(ours) == PROMPTS * N
        for session, values in ours.items():
            assert theirs[session] == pytest.approx(values, abs=1e-5)
    assert any(row["hgpo/turns_with_signal"] > 0 for row in hgpo.rows), "else nothing was compared"


def test_sessions_are_counted_and_optimizer_steps_are_those_of_the_settings(hgpo, recording, rows_folder):
    for row in hgpo.rows:
        sessions = [each for each in recorded_sessions.sessions(recording) if each["step"] == row["step"]]
        turns = [len(each["outputs"]) for each in sessions]
        won = [each["outputs"][-1].extra_fields["reward_extra_info"]["acc"] for each in sessions]
        assert row["sessions/number"] == PROMPTS * N == len(sessions) and row["sessions/failed"] == 0
        assert row["fresh/rows"] == sum(turns) > len(sessions)
        mean = sum(turns) / len(turns)
        for name in ("sessions/turns", "num_turns/mean", "training/num_turns/mean"):
            assert row[name] == pytest.approx(mean)
        success = sum(won) / len(won)
        for name, each in (("sessions/success", 1), ("fresh/acc/mean", 1), ("critic/score/mean", 10)):
            assert row[name] == pytest.approx(success * each)
        (rank,) = received_rows(rows_folder, row["step"])
        assert len(rank) == PROMPTS, "4 prompts in mini-batches of 1 are four optimizer steps, however many turns"


def test_without_nested_groups_it_is_verls_grpo_bit_for_bit(train, hgpo, player, recording, tmp_path):
    """As many turns in an optimizer step as verl takes: the mini-batch in sessions, which it counts rows by."""
    settings = [*CRAWL, *player.plays(), f"trainer.save_freq={STEPS}"]
    grpo = train(
        *("grpo", "sessions_grpo", "--world", "textworld", *settings, *replays(recording, VERLS)),
        "trainer.v1.trainer_mode=sync",
    )
    weights = [f"algorithm.hgpo.{name}" for name in ("step_weight=0", "episode_weight=1", f"rows_per_step={N}")]
    off = train(
        *("hgpo", "sessions_off", *settings, *replays(recording, OURS), *weights, rows_override(tmp_path)),
    )
    assert len(grpo.rows) == len(off.rows) == STEPS
    for verls, ours in zip(grpo.rows, off.rows, strict=True):
        assert {key: ours[key] for key in SAME} == {key: verls[key] for key in SAME}
    assert any(row["actor/grad_norm"] > 0 for row in grpo.rows)
    assert_equal_weights(grpo, off, STEPS)
    # And verl's GRPO is the pure function's with one row a session, no history, and all in one state.
    for step in range(1, STEPS + 1):
        sessions = [each for each in recorded_sessions.sessions(recording) if each["step"] == step]
        returns = [each["outputs"][-1].reward_score for each in sessions]
        names = range(len(sessions))
        rows = {"state_keys": [""] * len(sessions), "uid": [each["uid"] for each in sessions], "trajectory": names}
        expected = compute_hgpo_advantage(returns, **rows, turn=[0] * len(sessions), depth=0, ddof=1)
        wanted = Counter(
            (round(value, 3), len(each["outputs"])) for value, each in zip(expected, sessions, strict=True)
        )
        found = received(tmp_path, step).values()
        assert all(values == pytest.approx([values[0]] * len(values), abs=1e-5) for values in found)
        assert Counter((round(values[0], 3), len(values)) for values in found) == wanted


def test_a_run_that_was_asked_to_end_goes_on_exactly(hgpo, player, recording, cache, tmp_path):
    settings = [*CRAWL, *player.plays(), "trainer.save_freq=1", *replays(recording, OURS)]
    victim = Crash(tmp_path, "victim", cache, settings, random.Random(1), patience=120, method="hgpo")
    assert victim.strike(SIGTERM, "rollout or training")
    finished = victim.finish()
    assert finished.summary["starts"] == 2
    assert_equal_runs(hgpo, finished, STEPS)  # SIGTERM loses nothing


def tasks(file: Path, *worlds: dict) -> Path:
    """Rows of these worlds, without a list of commands: what a model writes is played as it is."""
    rows = [
        {
            "data_source": "hostile",
            "prompt": [{"role": "user", "content": "Go on."}],
            "ability": "agent",
            "reward_model": {"style": "rule", "ground_truth": "won"},
            "extra_info": {"index": index},
            "agent_name": "session",
            "task": {"answer": "", "commands": None, **world, "world": f"tests.hgpo.hostile:{world['world']}"},
        }
        for index, world in enumerate(worlds)
    ]
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file


@pytest.fixture(scope="module")
def misused(train, player, tmp_path_factory) -> tuple[Run, Path]:
    """Two batches with three bad worlds each, and one that holds nothing else; what the workers received."""
    folder = tmp_path_factory.mktemp("hostile")
    bad = [{"world": "Hangs"}, {"world": "Dies"}, {"world": "Lies", "answer": "nan"}]
    batch = [*bad, {"world": "Moody"}, {"world": "FreeText"}]
    data = tasks(folder / "train.parquet", *batch, *batch, *[{"world": "Raises"}] * len(batch))
    plays = player.plays(data, tasks(folder / "val.parquet", *batch))
    settings = [f"data.train_batch_size={len(batch)}", "data.shuffle=False", "trainer.test_freq=2"]
    deadline = "actor_rollout_ref.rollout.custom.session.deadline_s=5"
    run = train("hgpo", "hostile", *CRAWL, *plays, *settings, deadline, rows_override(folder / "rows"), ok=False)
    return run, folder / "rows"


def test_a_world_that_hangs_dies_or_lies_ends_its_own_sessions_only(misused):
    run, rows_folder = misused
    assert len(run.rows) == 2
    for row in run.rows:
        assert row["sessions/number"] + row["sessions/failed"] == 5 * N
        sessions = Counter(uid for uid, _ in received(rows_folder, row["step"]))
        assert max(sessions.values()) == N, "those of the world that does nothing bad"
        assert len(sessions) <= 2 and sum(sessions.values()) == row["sessions/number"]
    told = (run.folder / "run.log").read_text(errors="replace")
    assert "4 x the environment hung: no answer in 5 s; raise actor_rollout_ref.rollout.custom.session" in told
    for bad in ("crashed: its process ended; mend", "lied: "):
        assert f"x the environment {bad}" in told
    validated = [line for line in run.logged if "val/hostile/failed" in line]
    assert validated and all(line["val/hostile/failed"] >= 12 for line in validated)


def test_a_batch_whose_sessions_all_fail_ends_the_run_with_the_cause_and_the_way_out(misused):
    run, _ = misused
    assert run.code not in (0, None)
    told = (run.folder / "run.log").read_text(errors="replace")
    assert "all 20 sessions of a batch to train on failed" in told
    assert "the floor gave way" in told and "mend the adapter" in told
