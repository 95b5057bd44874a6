"""`r3 rehearse`: what is measured, the prediction of the whole run from it, and what it advises."""

import json
import os
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from r3_ext.record import memory
from r3_ext.rehearse import predict, report, steps
from r3_ext.rehearse.measured import Measured, received
from r3_ext.rehearse.predict import Course, Seconds
from r3_ext.rehearse.text import markdown
from r3_ext.settings import sizing
from r3_ext.settings.compose import compose_config
from tests.ext.rehearsed import DISTILL, GPU, LONGEST, embedded, too_little

# the prediction


def test_the_course_of_a_run():
    config, _ = embedded("trainer.test_freq=10", "trainer.save_freq=20", "trainer.total_epochs=5")
    assert Course.of(config, problems=128) == Course(40, first=8, validations=5, checkpoints=2)
    # verl validates and saves after the last step as well
    config.trainer.total_training_steps, config.trainer.total_epochs = 41, 100
    assert Course.of(config, problems=1000) == Course(41, first=41, validations=6, checkpoints=3)
    config.trainer.test_freq, config.trainer.save_freq, config.trainer.val_before_train = -1, -1, False
    assert Course.of(config, problems=128) == Course(41, 8, 0, 0)
    config.trainer.total_epochs = 2
    assert Course.of(config, problems=128).steps == 16, "epochs end it before"


def test_the_seconds_of_a_run():
    seconds = Seconds(start=30, first=2, later=3, worst=10, grpo=2.5, validation=5, checkpoint=1, end=4)
    course = Course(steps=40, first=8, validations=5, checkpoints=2)
    assert predict.run_seconds(course, seconds) == 30 + 8 * 2 + 32 * 3 + 5 * 5 + 2 * 1 + 4
    assert predict.worst_seconds(course, seconds) == 30 + 40 * 10 + 25 + 2 + 4
    assert predict.grpo_seconds(course, seconds) == 30 + 40 * 2.5 + 25 + 2 + 4


def test_the_history_is_bounded_by_its_settings():
    config, _ = embedded("algorithm.r3.history.max_per_outcome=2", "algorithm.r3.history.max_gib=1")
    assert predict.history_bytes(config, 10, 1000, rows=64, row_bytes=100) == 64_000
    assert predict.history_bytes(config, 10_000, 100, rows=64, row_bytes=100) == 100 * 2 * 2 * 2 * 100
    assert predict.history_bytes(config, 10_000, 10**9, rows=64, row_bytes=10_000) == 2**30


def test_micro_batches_that_fit():
    assert predict.tokens_that_fit(25, before=10, peak=30, tokens=16384, least=4096) == 12288
    assert predict.tokens_that_fit(30, before=10, peak=30, tokens=16384, least=4096) == 16384
    assert predict.tokens_that_fit(12, before=10, peak=30, tokens=16384, least=4096) is None
    assert predict.tokens_that_fit(9, before=10, peak=30, tokens=16384, least=16) is None


@pytest.mark.parametrize("share", ["0.6", "0.98", "0.05"])
def test_the_computed_settings_fit_and_the_present_ones_do_not(share):
    config, gib = compose_config([*GPU, f"{predict.UTILIZATION}={share}"]), too_little()
    assert not sizing.plan(config, DISTILL, gib).fits
    fit = predict.computed_fit(config, DISTILL, gib)
    assert (predict.UTILIZATION in " ".join(fit)) == (share != "0.6") and predict.TOKENS in fit[-1]
    changed = OmegaConf.merge(config, OmegaConf.from_dotlist(fit))
    plan = sizing.plan(changed, DISTILL, gib)
    assert plan.fits and plan.cache_tokens >= LONGEST, fit
    assert LONGEST <= sizing.micro_batch_tokens(changed) < sizing.micro_batch_tokens(config)


def test_nothing_is_advised_where_the_settings_fit_or_nothing_does():
    config = compose_config(GPU)
    assert predict.computed_fit(config, DISTILL, 79.0) == []
    assert predict.computed_fit(config, DISTILL, 4.0) is None


# what was measured


def sample(t: float, main: float, *gpus: float) -> dict:
    return {"t": t, "main": {"trainer": main}, **({"gpus": list(gpus)} if gpus else {})}


@pytest.fixture
def folder(tmp_path):
    """Two steps, the second the worst and unfinished."""
    phases = [
        (0, 0, None, "start"),
        (10, 1, "first", "rollout"),
        (14, 1, "first", "update"),
        (16, 1, "first", "validation"),
        (20, 1, "first", "metrics"),
        (21, 2, "worst", "rollout"),
        (30, 2, "worst", "update"),
    ]
    lines = [dict(zip(("t", "step", "kind", "phase"), phase, strict=True)) for phase in phases]
    (tmp_path / steps.PHASES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    samples = [sample(5, 2.0), sample(12, 3.0), sample(15, 4.0), sample(25, 6.0), sample(29, 5.5), sample(31, 9.0)]
    (tmp_path / memory.FILE).write_text("".join(json.dumps(line) + "\n" for line in samples))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "generated/tokens": 400}) + "\n")
    return tmp_path


def test_phases_have_their_own_seconds_and_peaks(folder):
    measured = Measured.read(folder, began=-3, ended=33)
    assert measured.step_seconds("first") == 4 + 2 + 1, "validation is no part of a step"
    assert measured.phase_seconds("validation") == 4
    assert measured.peak("first", "rollout") == {"main": 3.0} and measured.peak("first")["main"] == 4.0
    assert measured.peak("worst", "update") == {"main": 9.0} and measured.before("worst", "update") == {"main": 5.5}
    assert measured.peak("first", "weight sync") == {}
    assert measured.steps("worst") == [], "it was not finished"


@pytest.mark.parametrize(
    "text, is_memory",
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 23.2 GiB.", True),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory", True),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("ValueError: something else", False),
    ],
)
def test_a_failure_names_its_phase_and_a_change_where_it_was_memory(folder, text, is_memory):
    (folder / "run.log").write_text(f"(WorkerDict pid=7) Traceback\n(WorkerDict pid=7) {text}\n")
    failed = report.failure(Measured.read(folder, -3, 33), folder / "run.log")
    assert (failed["step"], failed["kind"], failed["phase"]) == (2, "worst", "update")
    assert failed["out_of_memory"] == is_memory and failed["error"] == text and failed["peak"] == {"main": 9.0}
    config, _ = embedded()
    advice = report.failure_advice(config, failed)
    assert advice == [f"{predict.TOKENS}=8192, half of now, and rehearse again" if is_memory else report.READ]
    told = markdown({"failure": failed, "fits": False, "advice": advice})
    assert "Failed in: step 2 (worst case), update." in told and advice[0] in told


@pytest.mark.parametrize(
    "text",
    [
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task.",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    ],
)
def test_a_worker_that_was_killed_is_told_as_such(folder, text):
    (folder / "run.log").write_text(text + "\n")
    failed = report.failure(Measured.read(folder, -3, 33), folder / "run.log")
    killed, change = report.failure_advice(embedded()[0], failed)
    assert killed == report.KILLED and change.startswith(f"{predict.TOKENS}=8192")


@pytest.mark.parametrize("phase", ["values", "critic's update"])
def test_the_critics_memory_is_advised_by_the_critics_own_settings(phase):
    config = compose_config(["+profile=embedded", "+method=ppo", "critic.ppo_infer_max_token_len_per_gpu=4096"])
    failed = {"phase": phase, "out_of_memory": True, "error": "CUDA out of memory"}
    told = report.failure_advice(config, failed)
    assert told == ["critic.ppo_infer_max_token_len_per_gpu=2048, half of now, and rehearse again"]
    config.critic.ppo_infer_max_token_len_per_gpu = 576
    assert report.failure_advice(config, failed)[0].startswith("critic.fsdp.offload_policy=True, or shorter")


def test_vllm_says_whether_its_share_is_too_small_or_too_large():
    config = compose_config(["+profile=gpu_8x80gb", "+method=r3", f"{predict.UTILIZATION}=0.6"])
    failed = {"phase": "start", "out_of_memory": True}
    small = {"error": "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."}
    large = {"error": "ValueError: Free memory on device (20/80 GiB) on startup is less than desired GPU memory"}
    assert report.failure_advice(config, failed | small) == [f"{predict.UTILIZATION}=0.70, and rehearse again"]
    assert report.failure_advice(config, failed | large) == [f"{predict.UTILIZATION}=0.50, and rehearse again"]


def test_a_death_before_the_first_step_is_told_without_phases(tmp_path):
    failed = report.failure(Measured.read(tmp_path, 0, 1), tmp_path / "run.log")
    assert failed["phase"] == "start" and failed["error"] == report.SILENT
    assert "Failed in: start" in markdown({"failure": failed, "fits": False, "advice": ["x"]})


def test_a_peak_over_the_budget_is_told_with_the_micro_batch_that_fits(folder):
    config, _ = embedded()
    measured = Measured.read(folder, -3, 33)
    assert report.advice(config, measured, budget=9.0) == []
    # 5.5 before, 9 with 16,384 tokens: 7.25 takes half, and is 95 % of this budget
    assert report.advice(config, measured, budget=7.25 / 0.95) == [f"{predict.TOKENS}=8192"]
    [line] = report.advice(config, measured, budget=5.6)[:1]
    assert line.startswith("no micro-batch of a whole row (576 tokens)")


def test_what_the_workers_received_is_counted_once_without_padding(tmp_path):
    rows = [
        {"uid": "a#ranked", "session": 0, "tokens": 48},
        {"uid": "a#ranked", "session": 1, "tokens": 48},
        {"uid": "a#replay", "session": 2, "tokens": 47},
        {"uid": "pad1", "session": 0, "tokens": 0},
    ]
    (tmp_path / "step_5").mkdir()
    (tmp_path / "step_5" / "rank_0.jsonl").write_text(json.dumps(rows) + "\n" + json.dumps(rows[:2]) + "\n")
    found = received(tmp_path, 5)
    assert (found["rows"], found["fresh"], found["replayed"], found["ranked_groups"]) == (3, 2, 1, 1)
    assert found["fresh_tokens"] == [48] and found["replayed_tokens"] == [47] and found["groups"] == 1


# memory

GROWS = """
held = b"x" * (300 * 2**20)
print(1, flush=True)
input()
more = b"x" * (200 * 2**20)
print(2, flush=True)
input()
"""


def test_the_memory_of_a_process_is_what_it_touches_and_its_growth_is_seen_between_two_readings(tmp_path):
    # A name of its own: the tests' own process may have other children.
    (tmp_path / "grows").symlink_to(os.path.realpath(sys.executable))
    pipe = subprocess.PIPE
    child = subprocess.Popen([str(tmp_path / "grows"), "-c", GROWS], stdin=pipe, stdout=pipe, text=True)
    try:
        child.stdout.readline()
        log = memory.MemoryLog(tmp_path, every_s=0)
        log.poll()
        log.read_at = float("inf")  # no second reading in full
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        log.poll()
        lines = memory.read(tmp_path)
        before, after = (line["main"]["grows"] for line in lines)
        assert before > 300 / 1024 and after - before == pytest.approx(200 / 1024, abs=0.01)
        assert memory.peak(lines)["main"] == pytest.approx(sum(lines[1]["main"].values()), abs=0.001)
    finally:
        child.kill()
        child.wait()
    log.poll()
    assert "grows" not in memory.read(tmp_path)[-1]["main"], "what ended takes nothing"


def test_a_log_writes_the_highest_sample_of_its_interval(tmp_path):
    log = memory.MemoryLog(tmp_path, every_s=1000)
    readings = iter([{"a": 1.0}, {"a": 3.0}, {"a": 2.0}, {"a": 50.0}, {"a": 4.0}])
    log._main = lambda now: next(readings)
    log.poll()  # the first at once
    log.poll()
    log.written = float("-inf")
    log.poll()
    assert [line["main"] for line in memory.read(tmp_path)] == [{"a": 1.0}, {"a": 3.0}]
    log.poll()
    log.poll()
    log.close()
    log.close()
    assert [line["main"] for line in memory.read(tmp_path)][2:] == [{"a": 50.0}], "the end of a run counts"
    both = memory.higher(sample(0, 1, 10, 30), sample(1, 2, 20, 5))
    assert both["t"] == 1 and both["gpus"] == [20, 30]


def test_titles_of_processes():
    assert memory.title(["ray::WorkerDict.actor_rollout_update_actor"]) == "ray::WorkerDict"
    assert memory.title(["/usr/bin/python3", "-m", "x"]) == "python3"
    assert memory.title(["VLLM::EngineCore"]) == "VLLM::EngineCore"


def test_peaks_of_gpus_are_each_its_own():
    assert memory.peak([sample(0, 1, 10, 30), sample(1, 2, 20, 5)]) == {"main": 2, "gpus": [20, 30]}
