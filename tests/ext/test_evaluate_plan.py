"""`r3 eval` before it generates: benchmark files, plans, and the command line."""

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from r3_ext.data import write
from r3_ext.evaluate import EvaluationError, benchmarks, command, generate, plan
from tests.ext.evaluated import GOLDEN, problem, scored, write_jsonl

DATA = os.environ.get("R3_TEST_DATA")
EVAL = Path(DATA or ".") / "eval"
needs_data = pytest.mark.skipif(not DATA, reason="R3_TEST_DATA names no folder of data sets (tests/README.md)")
SAMPLING = plan.Sampling(n=16, max_tokens=8192, temperature=0.6, top_p=0.95, seed=0, limit=None)


# benchmark files


def test_the_hash_sees_words_answers_rows_and_order_and_nothing_else():
    def of(*rows):
        return benchmarks.content_hash([problem(text, answer, i) for i, (text, answer) in enumerate(rows)])

    base = of(("What is\n x?", "025"), ("b", r"\dfrac12"))
    assert base == of(("What  is x? ", "25"), ("b", "1/2"))
    others = [
        of(("What is y?", "025"), ("b", r"\dfrac12")),
        of(("What is\n x?", "26"), ("b", r"\dfrac12")),
        of(("What is\n x?", "025")),
        of(("b", r"\dfrac12"), ("What is\n x?", "025")),
    ]
    assert len({base, *others}) == 5


def test_a_raw_and_a_converted_file_have_one_hash(tmp_path):
    raw = write_jsonl(tmp_path / "raw.jsonl", [{"problem": f"p{i} ", "answer": f"0{i}"} for i in range(5)])
    problems, _ = benchmarks.read_problems(raw, "x")
    write.write_rows(tmp_path / "converted.parquet", [write.to_row(p, "x", "test") for p in problems])
    hashes = {benchmarks.load(f"x={file}", tmp_path).hash for file in (raw, tmp_path / "converted.parquet")}
    assert len(hashes) == 1


def test_a_changed_benchmark_file_is_refused_with_both_hashes(tmp_path, monkeypatch):
    file = write_jsonl(tmp_path / "aime24.jsonl", [{"problem": "p", "answer": "1"}, {"problem": "q", "answer": "2"}])
    digest = benchmarks.load(f"own={file}", tmp_path).hash
    monkeypatch.setitem(benchmarks.KNOWN, "aime24", benchmarks.Known(2, digest, "aime24"))
    assert benchmarks.load("aime24", tmp_path).hash == digest
    write_jsonl(file, [{"problem": "p", "answer": "1"}, {"problem": "q", "answer": "3"}])
    with pytest.raises(
        EvaluationError, match=rf"must be {digest}, is [0-9a-f]{{64}}\. .*--benchmarks my_aime24="
    ) as error:
        benchmarks.load("aime24", tmp_path)
    assert benchmarks.load(f"own={file}", tmp_path).hash in str(error.value)


@needs_data
@pytest.mark.parametrize("name", benchmarks.KNOWN)
def test_the_benchmark_files_are_the_known_ones(name):
    benchmark = benchmarks.load(name, EVAL)
    assert len(benchmark.problems) == benchmarks.KNOWN[name].problems
    assert benchmarks.name_of(benchmark.problems, "other")[0] == name


@needs_data
def test_amc23_40_is_the_part_of_amc23_from_2023():
    ids = pq.read_table(EVAL / "amc23.parquet")["id"].to_pylist()
    part = benchmarks.load("amc23_40", EVAL).problems
    assert [ids[p.index] for p in part] == [one for one in ids if one.startswith("2023_")]


@pytest.mark.parametrize(
    ("spec", "content", "message"),
    [
        ("amc", None, "amc is unknown, expected one of aime24, .* or NAME=FILE"),
        ("aime24", None, "no aime24.parquet, .jsonl or .json in .* --output-dir"),
        ("aime24=x.jsonl", "", "aime24 is the name of a known benchmark; give .* another name"),
        ("a b=x.jsonl", "", "a name must be made of letters"),
        ("own=missing.jsonl", None, "no such file"),
        ("own=x.jsonl", "", "the file is empty"),
        ("own=x.jsonl", "{", "line 1: not a JSON object"),
        ("own=x.jsonl", '{"prompt": [], "reward_model": {}}', "not in this project's format"),
        ("own=x.jsonl", '{"problem": "p", "answer": ""}', "no usable problem"),
        ("own=x.parquet", "no parquet", "benchmark own: "),
    ],
)
def test_a_wrong_benchmark_is_refused_with_a_sentence(spec, content, message, tmp_path):
    name, _, file = spec.partition("=")
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(EvaluationError, match=message):
        benchmarks.load(f"{name}={tmp_path / file}" if file else name, tmp_path)


# plans


def test_the_seed_of_an_answer_depends_on_seed_problem_and_sample_only():
    rows = [{"benchmark": "b", "index": i, "query_id": f"q{i}"} for i in range(3)]
    few = plan.requests(rows[1:], plan.Sampling(2, 10, 0.6, 0.95, 7, None))
    many = plan.requests(rows, plan.Sampling(64, 99, 1.0, 1.0, 7, None))
    assert set(few) <= set(many)
    seeds = [request.seed for request in many] + [r.seed for r in plan.requests(rows, SAMPLING)]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 1 << 63 for seed in seeds)


def test_the_ranks_share_the_missing_answers_out(tmp_path):
    scored(tmp_path, {"p": 1, "q": 2, "r": 3}, n=5)
    part = plan.parts(tmp_path)[0]
    table = pq.read_table(part)
    pq.write_table(table.slice(0, 7), part)
    shares = [generate.pending(tmp_path, rank, 4) for rank in range(4)]
    keys = sorted(request.key for share in shares for request in share)
    missing = table.slice(7).select(["benchmark", "index", "sample"]).to_pydict()
    assert keys == sorted(zip(*missing.values(), strict=True))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_parts_of_a_second_start_do_not_replace_those_of_the_first(tmp_path):
    scored(tmp_path, {"p": 1}, n=2)
    rows = pq.read_table(plan.parts(tmp_path)[0]).to_pylist()
    for row in rows:
        writer = generate.PartWriter(tmp_path, 0)
        writer.add(row)
        writer.flush()
        writer.flush()
    assert [part.name for part in plan.parts(tmp_path)] == [f"000-0000{i}.parquet" for i in range(3)]


def test_another_plan_in_the_folder_is_refused_and_a_moved_model_is_not(tmp_path):
    benchmark = benchmarks.Benchmark("b", "f", "h", [problem("p")])
    begun = plan.make_plan({"path": "/here", "fingerprint": "1"}, [benchmark], SAMPLING)
    plan.begin(tmp_path, begun, plan.problem_rows([benchmark], None))
    plan.begin(tmp_path, plan.make_plan({"path": "/there", "fingerprint": "1"}, [benchmark], SAMPLING), [])
    assert plan.read_plan(tmp_path)["model"]["path"] == "/there"
    for changed, key in (
        (plan.make_plan({"path": "/here", "fingerprint": "2"}, [benchmark], SAMPLING), "model.fingerprint"),
        (begun | {"sampling": begun["sampling"] | {"top_p": 0.5}}, r"sampling.top_p \(0.95 there, 0.5 asked for\)"),
        (begun | {"benchmarks": {}}, "benchmarks.b.hash"),
    ):
        with pytest.raises(EvaluationError, match=f"another evaluation: .*{key}.*--out"):
            plan.begin(tmp_path, changed, [])


@pytest.mark.parametrize("name", ["results.json", "problems.parquet", "anything"])
def test_a_folder_of_others_stays_as_it_is(name, tmp_path, capsys):
    (tmp_path / name).write_text("theirs")
    assert command.main(["score", str(GOLDEN), "--out", str(tmp_path)]) == 2
    assert f"holds {name} and no evaluation" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "theirs"


def test_an_evaluation_that_was_killed_at_its_begin_goes_on(tmp_path, monkeypatch):
    def killed(*args):
        raise KeyboardInterrupt

    arguments = ["score", str(GOLDEN), "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(plan, "write_table", killed)
        assert command.main(arguments) == 130
    assert command.main(arguments) == 0


def test_a_folder_may_have_prompts_of_its_own_and_goes_on_with_these_only(tmp_path):
    benchmark = benchmarks.Benchmark("x", "file", "h", [problem("p")])
    content = plan.make_plan({"path": "m", "fingerprint": "f"}, [benchmark], SAMPLING)
    for _ in range(2):
        plan.begin(tmp_path, content, plan.problem_rows([benchmark], None), {("x", 0): [3, 1, 4]})
        assert generate.prompts(tmp_path, "no model is read", False) == {("x", 0): [3, 1, 4]}
    for others in ({("x", 0): [3, 1, 5]}, None):
        with pytest.raises(EvaluationError, match="holds another evaluation: prompts"):
            plan.begin(tmp_path, content, plan.problem_rows([benchmark], None), others)


def test_two_evaluations_do_not_write_into_one_folder(tmp_path):
    with plan.only_writer(tmp_path), pytest.raises(EvaluationError, match="another `r3 eval` is writing here"):
        with plan.only_writer(tmp_path):
            pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "--n must be at least 1, got 0"),
        ({"max_tokens": -1}, "--max-tokens must be at least 1"),
        ({"limit": 0}, "--limit must be at least 1"),
        ({"top_p": 0.0}, "--top-p must be above 0"),
        ({"temperature": float("nan")}, "--temperature must be 0 or more, got nan"),
        ({"temperature": 0.0}, "--n must be 1 at --temperature 0"),
    ],
)
def test_impossible_sampling_is_refused(change, message):
    settings = {"n": 16, "max_tokens": 8, "temperature": 0.6, "top_p": 0.95, "seed": 0, "limit": None}
    with pytest.raises(EvaluationError, match=message):
        plan.Sampling(**settings | change)


def test_checkpoint_shards_of_verl_are_refused_with_the_command_that_merges_them(tmp_path):
    actor = tmp_path / "global_step_3" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    (actor / "huggingface" / "config.json").write_text("{}")
    (actor / "model_world_size_1_rank_0.pt").touch()
    for folder in (actor.parent, actor, actor / "huggingface"):
        with pytest.raises(EvaluationError, match=f"merge --backend fsdp --local_dir {actor} --target_dir MERGED"):
            plan.model_folder(str(folder))
    (actor / "huggingface" / "model.safetensors").touch()  # merged into place
    assert plan.model_folder(str(actor / "huggingface")) == actor / "huggingface"


def test_a_folder_without_weights_is_no_model(tmp_path):
    with pytest.raises(EvaluationError, match="no weights in it"):
        plan.model_folder(str(tmp_path))
    with pytest.raises(EvaluationError, match="no such folder"):
        plan.model_folder(str(tmp_path / "missing"))


def test_the_fingerprint_sees_every_byte_of_the_model_and_not_its_readme(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(3_000_000))
    (tmp_path / "config.json").write_text("{}")
    before = plan.fingerprint(tmp_path)
    (tmp_path / "README.md").write_text("about")
    assert plan.fingerprint(tmp_path) == before
    content = bytearray(3_000_000)
    content[1_500_000] = 1
    (tmp_path / "model.safetensors").write_bytes(content)
    assert plan.fingerprint(tmp_path) != before


def test_engine_settings_and_ranks():
    on_cpu = command.engine_args(["max_num_seqs=4", "quantization=fp8", "seed=null"], on_gpu=False)
    assert on_cpu["dtype"] == "float32" and on_cpu["max_num_seqs"] == 4 and "worker_cls" not in on_cpu
    assert on_cpu["quantization"] == "fp8" and on_cpu["seed"] is None
    assert command.engine_args([], on_gpu=True) == {}
    eight = [str(gpu) for gpu in range(8)]
    assert command.rank_count("auto", eight, {}) == 8
    assert command.rank_count("auto", eight, {"tensor_parallel_size": 3}) == 2
    assert command.rank_count("auto", [], {}) == 1
    for asked, settings in (("9", {}), ("0", {}), ("two", {}), ("auto", {"tensor_parallel_size": 16})):
        with pytest.raises(EvaluationError, match="--data-parallel must be auto or a number from 1 to"):
            command.rank_count(asked, eight, settings)
    with pytest.raises(EvaluationError, match="--engine-arg must be KEY=VALUE, got 'x'"):
        command.engine_args(["x"], on_gpu=True)


def test_a_gpu_without_the_cuda_toolkit_compiles_no_sampler_unless_told_to(monkeypatch):
    for name in ("VLLM_USE_FLASHINFER_SAMPLER", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert command.engine_environment(on_gpu=True)["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    on_cpu = command.engine_environment(on_gpu=False)
    assert on_cpu["VERL_PLATFORM"] == "cpu" and on_cpu["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", "1")
    assert command.engine_environment(on_gpu=True)["VLLM_USE_FLASHINFER_SAMPLER"] == "1"


# the command line


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: --model, --benchmarks"),
        (["--model", "m", "--benchmarks", "aime24", "--n", "x"], "argument --n: invalid int value: 'x'"),
        (["--model", "m", "--benchmarks", "aime24", "--n", "0"], "--n must be at least 1, got 0"),
        (["--model", "m", "--benchmarks", "nothing"], "nothing is unknown, expected one of"),
        (["compare", "a"], "the following arguments are required: B"),
        (["score", "nowhere"], "nowhere: no such file or folder"),
        (["score", "n" * 300], "cannot be read: File name too long"),
        (["score", str(GOLDEN), "--out", "n" * 300], "cannot be made: File name too long"),
        (["hard", "--base", "nowhere"], "nowhere is not a folder of `r3 eval`"),
    ],
)
def test_errors_of_the_user_end_with_2_and_one_sentence(argv, message, capsys):
    assert command.main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_on_the_cpu_prompts_are_read_in_one_piece_since_seeded_requests_need_it():
    assert command.engine_args([], on_gpu=False)["enable_chunked_prefill"] is False
    assert "enable_chunked_prefill" not in command.engine_args([], on_gpu=True)


def test_tasks_of_sessions_are_played_and_not_asked_and_the_way_is_told(tmp_path):
    write_jsonl(tmp_path / "val.jsonl", [{"problem": "Eat.", "answer": "1", "task": {"world": "x"}}])
    with pytest.raises(EvaluationError, match="trainer.val_only=True trainer.resume_mode=resume_path .*val.jsonl`"):
        benchmarks.load(f"games={tmp_path / 'val.jsonl'}", tmp_path)
