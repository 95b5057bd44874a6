import pytest
import transfer_queue as tq
from collector import PROMPT, N, finish_step, read, stored, write_group

from recipe.common.metrics import series_metrics
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import PLAIN, REFLECTION, REFLECTION_UID, RESTART, RowKey, tags_of, uid_of
from recipe.common.trainer.discarded import watched
from recipe.common.trainer.measured import MeasuredMixin


def reflect(query, step, outcomes=("wrong",) * N, **changes) -> str:
    return write_group(query, outcomes, step, variant=REFLECTION, uid=REFLECTION_UID, **changes)


def uids_of(batch: KVBatchMeta) -> set[str]:
    return set(map(uid_of, batch.keys))


def test_a_batch_has_its_plain_groups_and_finished_reflections_ride_along_oldest_first(make_async, history):
    buffer = make_async(cap=2)
    reflections = [reflect(f"r{step}", step) for step in (3, 1, 2)]
    running = reflect("late", 3, outcomes=(), status="running")
    plain = [write_group(f"q{step}", ("right", "wrong", "cut"), step) for step in (2, 1, 3)]
    batch, _ = buffer.sample(3, "train", 2)
    assert uids_of(batch) == {plain[0], plain[1], reflections[1], reflections[2]}
    assert buffer.step_metrics() == {
        **{"groups/evicted": 0, "reflection/groups/evicted": 0, "replay/passed_over_for_text": 0},
        **{"groups/outstanding": 1, "reflection/groups/outstanding": 2},
    }
    finish_step(batch)
    batch, _ = buffer.sample(3, "train", 1)
    assert uids_of(batch) == {plain[2], reflections[0]}, "a running one is not waited for"
    finish_step(batch)
    assert set(tq.kv_list("train")["train"]) == {running}
    history.flush()
    assert sum(row[0] for row in history._db.execute("SELECT attempts FROM statistics")) == 6 * N


def test_reflections_alone_are_no_batch(make_async):
    buffer = make_async(cap=9, stall_timeout_s=0.3)
    for number in range(4):
        reflect(f"r{number}", 1)
    assert buffer.get_sampleable_count(1, "train") == 0
    with pytest.raises(TimeoutError, match="no rollout finished"):
        buffer.sample(1, "train", 1)


def test_the_backlog_does_not_grow_with_reflections(make_async):
    """What a plain subclass does: it submits N + r groups, consumes N, and is 4 groups further behind every step."""
    buffer, waiting = make_async(cap=2), []
    for number in range(4):
        write_group(f"ahead{number}", ("right", "wrong", "cut"), 0)
    for step in range(1, 30):
        for number in range(4):
            write_group(f"q{step}_{number}".replace("_", "-"), ("right", "wrong", "cut"), step)
        for number in range(2):
            reflect(f"r{step}-{number}", step)
        batch, _ = buffer.sample(step, "train", 4)
        waiting.append(buffer.step_metrics())
        finish_step(batch)
    assert {metrics["groups/outstanding"] for metrics in waiting} == {4}
    assert {metrics["reflection/groups/outstanding"] for metrics in waiting} == {0}
    assert not any(metrics["groups/evicted"] for metrics in waiting)


def test_of_a_restart_that_is_thrown_away_what_it_generated_is_counted(make_async):
    buffer = watched(make_async(strategy="drop", threshold=2, refills=[]))
    write_group("old", ("wrong",) * N, 1, variant=RESTART, of="gone")
    write_group("old", ("wrong",) * N, 1, variant=RESTART, uid="restart-")
    write_group("new", ("right", "wrong", "cut"), 4)
    finish_step(buffer.sample(4, "train", 1)[0])
    assert buffer.take_discarded() == (2 * ((2 - 1) + (3 - 1) + (4 - 1)), 2 * N * len(PROMPT))


def test_evicted_groups_are_stored_once_counted_and_plain_ones_replaced(make_async, history):
    refills = []
    buffer = make_async(strategy="drop", threshold=2, refills=refills)
    assert watched(buffer) is buffer
    for query in ("old", "older"):
        write_group(query, ("right", "wrong", "cut"), 1)
    reflect("old", 1)
    write_group("failed", ("wrong",) * (N - 1), 4, status="failure")
    fresh = write_group("new", ("right", "wrong", "cut"), 4)
    batch, metrics = buffer.sample(4, "train", 1)
    assert uids_of(batch) == {fresh} and refills == [3]
    assert metrics["training/off_policy/evicted_samples"] == 3  # verl's own count knows no difference
    told = buffer.step_metrics()
    assert (told["groups/evicted"], told["reflection/groups/evicted"]) == (3, 1)
    rates = history.success_rates(["old", "older", "failed", "new"], 1)
    assert rates == {"old": 1 / 3, "older": 1 / 3, "failed": 0.0, "new": 1 / 3}
    counts = history._db.execute("SELECT step, variant, sum(attempts) FROM statistics GROUP BY 1, 2").fetchall()
    assert counts == [(4, PLAIN, 4 * N - 1), (4, REFLECTION, N)]
    assert buffer.take_discarded() == (3 * (2 + 3 + 4) + 2 + 3, (3 * N + 2) * len(PROMPT))
    finish_step(batch)
    write_group("next", ("right", "wrong", "cut"), 5)
    buffer.sample(5, "train", 1)
    history.flush()
    assert history.success_rates(["old"], 1) == {"old": 1 / 3}, "not stored again"


def test_an_evicted_group_without_any_score_does_not_end_the_run(make_async, history):
    buffer = make_async(strategy="drop", threshold=2)
    write_group("old", ("failed",) * N, 1)
    fresh = write_group("new", ("right", "wrong", "failed"), 4)
    batch, _ = buffer.sample(4, "train", 1)
    assert uids_of(batch) == {fresh} and history.success_rates(["old"], 1) == {"old": 0.0}
    finish_step(batch)
    write_group("next", ("failed",) * N, 5)
    with pytest.raises(RuntimeError, match="step 5: no answer got a score"):
        buffer.sample(5, "train", 1)


def test_age_is_that_of_the_weights_and_mixed_answers_are_said_to_be(make_async, history):
    buffer = make_async(k=1)
    write_group("q", ("right", "wrong", "cut"), 3, versions=(1, 2))  # begun long before the step that trains it
    finish_step(buffer.sample(3, "train", 1)[0])
    write_group("q", ("wrong",) * N, 7, versions=(6, 6))
    batch, _ = buffer.sample(7, "train", 1)
    (replayed,) = [tag for tag in batch.tags if tag["origin"] == "replayed"]
    assert (replayed["replay_age"], replayed["versions"]) == (5, 2)  # the weights of step 6 are those of now
    metrics = series_metrics(batch)
    assert metrics["replay/mixed_versions/mean"] == 1 and metrics["fresh/mixed_versions/mean"] == 0
    finish_step(batch)
    write_group("q", ("wrong",) * N, 8, versions=(7, 7))
    assert all(tag.is_fresh for tag in tags_of(make_async(k=1, max_age=5).sample(8, "train", 1)[0]))


def test_recorded_rollouts_are_as_old_as_those_that_were_recorded(make_buffer, history):
    """verl stamps them with the step that replays them; the weights of a real one's are those of the step before."""
    buffer = make_buffer(k=1)
    for step, outcome in ((3, "right"), (5, "wrong")):
        write_group("q", (outcome,) * N, step, versions=(step, step))
        batch, _ = buffer.sample(step, "train", 1)
        tags = [tag for tag in batch.tags if tag["origin"] == "replayed"]
        finish_step(batch)
    assert [(tag["replay_age"], tag["versions"]) for tag in tags] == [(2, 1)]
    history.flush()
    assert history._db.execute("SELECT DISTINCT step - version FROM samples").fetchall() == [(1,)]


def test_what_is_counted_over_the_batches_of_a_step_adds_up(make_async, history):
    history.add([stored([60], None, variant=REFLECTION)], step=1)
    buffer = make_async(k=1, threshold=None)
    for expected in (1, 2):
        write_group("q", ("wrong",) * N, 2)
        finish_step(buffer.sample(2, "train", 1)[0])
        assert buffer.step_metrics()["replay/passed_over_for_text"] == expected
    write_group("other", ("wrong",) * N, 3)
    finish_step(buffer.sample(3, "train", 1)[0])
    assert buffer.step_metrics()["replay/passed_over_for_text"] == 0


def test_the_batches_of_one_step_draw_by_different_numbers_and_the_first_as_ever(make_async, make_buffer, history):
    history.add([stored([token], None) for token in range(1, 90)], step=1)

    def draw(buffer, step) -> int:
        write_group("q", ("wrong",) * N, step, variant=PLAIN)
        batch, _ = buffer.sample(step, "train", 1)
        (row,) = [row for key, row in read(batch).items() if RowKey.parse(key).session == N]
        finish_step(batch)
        return int(row["responses"][0])

    updates = make_async(k=1, threshold=None)
    first, second = draw(updates, 2), draw(updates, 2)
    assert draw(make_buffer(k=1), 2) == first != second
    again = make_async(k=1, threshold=None)
    assert [draw(again, 2), draw(again, 2)] == [first, second]


class Loads:
    """verl's part of a resume, done already: the queue is as it was saved."""

    def _load_checkpoint(self) -> None:
        self._restored_tq_prompt_count = len(tq.kv_list("train")["train"])
        self.global_steps = 3  # as verl's leaves it


class Resumed(MeasuredMixin, Loads):
    MODE = "colocate_async"

    def __init__(self):
        pass


def test_a_resume_drops_the_rows_of_the_step_that_was_saved_and_counts_plain_prompts(make_async):
    trained = write_group("trained", ("right", "wrong", "cut"), 3)
    tq.kv_clear(keys=[trained], partition_id="train")  # as when its batch was sampled
    kept = {write_group("done", ("right", "wrong"), 3), write_group("running", ("wrong",), 3, status="running")}
    kept.add(reflect("hard", 3))
    trainer = Resumed()
    trainer._load_checkpoint()
    keys = set(tq.kv_list("train")["train"])
    assert {key for key in keys if "_" not in key} == kept and set(map(uid_of, keys)) == kept
    assert len(keys) == 3 + 2 + 1 + N
    assert trainer._restored_tq_prompt_count == 2, "verl fetches as many prompts ahead as are missing"
