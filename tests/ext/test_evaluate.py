"""`r3 eval` without a model: benchmark files, plans, scores of known answers, comparison, the challenging subset."""

import json
import os
from math import comb
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3_ext.data import problems as data
from r3_ext.data import write
from r3_ext.evaluate import EvaluationError, benchmarks, command, compare, generate, hard, plan, results, score

ROOT = Path(__file__).resolve().parents[2]
DATA = os.environ.get("R3_TEST_DATA")
EVAL = Path(DATA or ".") / "eval"
needs_data = pytest.mark.skipif(not DATA, reason="R3_TEST_DATA names no folder of data sets (tests/README.md)")
GOLDEN = ROOT / "tests" / "data" / "released.jsonl"
SAMPLING = plan.Sampling(n=16, max_tokens=8192, temperature=0.6, top_p=0.95, seed=0, limit=None)


def problem(text: str, answer: str = "1", index: int = 0) -> data.Problem:
    return data.Problem(text, answer, "test", index)


def write_jsonl(file: Path, rows: list[dict]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def scored(folder: Path, successes: dict[str, int], n: int = 16, tokens=lambda k: 100, name="mine", extra="") -> Path:
    """A scored folder: problem -> how many of its n answers are right, the right ones last; tokens(k) long."""
    problems = [problem(text + extra) for text in successes]
    benchmark = benchmarks.Benchmark(name, "file", benchmarks.content_hash(problems), problems)
    rows = plan.problem_rows([benchmark], None)
    sampling = plan.Sampling(n, 8192, 0.6, 0.95, 0, None)
    plan.begin(folder, plan.make_plan({"path": str(folder), "fingerprint": "f"}, [benchmark], sampling), rows)
    answers = []
    for request in plan.requests(rows, sampling):
        right = request.sample >= n - list(successes.values())[request.index]
        text = {"response": rf"\boxed{{{int(right)}}}", "response_tokens": tokens(request.sample)}
        answers.append({**request._asdict(), **text, "truncated": False, "finish_reason": "stop"})
    plan.write_table(folder / "generations" / "000-00000.parquet", answers, plan.GENERATION)
    score.grade_folder(folder)
    return folder


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


# scores


@pytest.fixture(scope="module")
def golden(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("golden") / "out"
    assert command.main(["score", str(GOLDEN), "--out", str(folder)]) == 0
    return {"folder": folder, **json.loads((folder / "results.json").read_text())}


def test_answers_of_the_golden_file_score_as_by_hand(golden):
    # Right: 2 of 4 (42, 42.0), 3 of 4 (1/2 in three forms), 0 of 4, 4 of 4.
    expected = {
        "pass@1": (2 / 4 + 3 / 4 + 0 + 1) / 4,
        "pass@2": ((1 - 1 / comb(4, 2)) + 1 + 0 + 1) / 4,
        "pass@3": 3 / 4,
        "pass@4": 3 / 4,
        # 42, 42.0 and 41 are three answers with a vote each, two of them right; 1/2 twice beats 0.5 and 2.
        "maj@n": (2 / 3 + 1 + 0 + 1) / 4,
        "strict": (1 / 4 + 2 / 4 + 0 + 1) / 4,
        "no_answer": 2 / 16,
        "tokens/all": 490 / 16,
        "tokens/correct": 80 / 9,
        "tokens/wrong": 410 / 7,
    }
    metrics = golden["benchmarks"]["released"]["metrics"]
    assert {name: triple[0] for name, triple in metrics.items()} == pytest.approx(expected)
    assert all(low <= value <= high for value, low, high in metrics.values())
    assert golden["benchmarks"]["released"]["answers"] == 16


def test_the_disagreements_with_the_string_match_are_listed(golden):
    lines = [json.loads(line) for line in (golden["folder"] / "disagreements.jsonl").read_text().splitlines()]
    assert [(line["reference"], line["answer"], line["grader"], line["answers"]) for line in lines] == [
        ("42", "42.0", True, 1),
        (r"\frac{1}{2}", "0.5", True, 1),
    ]


def test_the_tables_show_the_figures_in_any_width(golden):
    text = results.markdown(golden)
    assert "| Pass@1 | 56.2 (" in text and "| tokens, correct | 9 (" in text and golden["model"]["fingerprint"] in text
    assert len(results.tables(golden, 20).renderables) == len(results.tables(golden, 200).renderables) == 2


def test_scoring_again_gives_the_same_and_one_text_per_row_does_as_well(golden, tmp_path):
    assert command.main(["score", str(golden["folder"])]) == 0
    assert json.loads((golden["folder"] / "results.json").read_text())["benchmarks"] == golden["benchmarks"]
    rows = [
        {"question": row["problem"], "answer": row["answer"], "response": text, "response_tokens": tokens}
        for row in map(json.loads, GOLDEN.read_text().splitlines())
        for text, tokens in zip(row["responses"], row["response_tokens"], strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "released.parquet")
    assert command.main(["score", str(tmp_path / "released.parquet")]) == 0
    again = json.loads((tmp_path / "released.parquet.eval" / "results.json").read_text())
    assert again["benchmarks"] == golden["benchmarks"]


def test_every_answer_is_graded_like_a_training_answer(tmp_path):
    """The verdicts that are shared between like answers are those of the reward's own function."""
    from recipe.common.reward.manager import is_correct

    responses = [r"\boxed{\frac{2}{4}}", r"\boxed{\frac{2}{4}}", r"\boxed{0.5}", "x", r"\boxed{1/3}", r"\boxed{0.5"]
    row = {"problem": "p", "answer": "1/2", "responses": responses}
    score.write_responses(tmp_path, *score.read_responses(write_jsonl(tmp_path / "in.jsonl", [row])))
    score.grade_folder(tmp_path)
    found = score.read_scores(tmp_path)["in"]
    assert found.correct_R.tolist() == [is_correct(response, "1/2") for response in responses]
    assert found.correct_R.tolist()[:3] == [True] * 3 and np.isnan(found.tokens_R).all()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"problem": "p", "answer": "1"}], "row 0: responses must be a list of texts"),
        ([{"problem": "p", "answer": "1", "responses": []}], "responses must be a list of texts"),
        ([{"problem": "p", "answer": "1", "responses": [None]}], "responses must be a list of texts"),
        ([{"problem": "p", "answer": "1", "responses": ["x"], "response_tokens": [1, 2]}], "one number per response"),
        (
            [{"problem": "p", "answer": a, "responses": ["x"]} for a in "12"],
            "rows 0 and 1: one problem with the answers",
        ),
        ([{"problem": "", "answer": "1", "responses": ["x"]}], "must not be empty"),
        ([{"text": "p"}], "no problem column"),
    ],
)
def test_answers_of_others_in_another_form_are_refused(rows, message, tmp_path, capsys):
    file = write_jsonl(tmp_path / "in.jsonl", rows)
    assert command.main(["score", str(file), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("error: ") and not (tmp_path / "out").exists()
    with pytest.raises(EvaluationError, match=message):
        score.read_responses(file)


def test_missing_doubled_and_damaged_answers_are_refused(tmp_path):
    scored(tmp_path, {"p": 1, "q": 2})
    part = plan.parts(tmp_path)[0]
    table = pq.read_table(part)
    (tmp_path / "generations" / "000-00001.parquet").write_bytes(part.read_bytes())
    with pytest.raises(EvaluationError, match="some answers twice"):
        score.grade_folder(tmp_path)
    (tmp_path / "generations" / "000-00001.parquet").unlink()
    pq.write_table(table.slice(1), part)
    with pytest.raises(EvaluationError, match="31 of 32 answers"):
        score.grade_folder(tmp_path)
    part.write_bytes(b"PAR1 torn")
    with pytest.raises(EvaluationError, match="is damaged .* the same command generates its answers again"):
        score.grade_folder(tmp_path)


def test_ragged_answers_give_pass_at_k_up_to_the_smallest_number():
    ragged = score.Scores(
        query_ids=["p", "q"],
        problem_R=np.array([0, 0, 0, 1, 1]),
        sample_R=np.array([0, 1, 2, 0, 1]),
        correct_R=np.array([True, False, False, False, True]),
        strict_R=np.zeros(5, bool),
        timeout_R=np.zeros(5, bool),
        answers=["1", "2", "2", None, "1"],
        tokens_R=np.array([10.0, 20, 30, 40, 50]),
        truncated_R=np.array([0.0, 0, 1, 1, 0]),
    )
    found = {name: values.sum() / counts.sum() for name, (values, counts) in results.quantities(ragged).items()}
    assert found["pass@1"] == pytest.approx((1 / 3 + 1 / 2) / 2) and "pass@3" not in found
    assert found["pass@2"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["maj@n"] == pytest.approx((0 + 1) / 2), "no answer outvoted an answer"
    assert found["tokens/all"] == 30 and found["truncated"] == pytest.approx((1 / 3 + 1 / 2) / 2)


def test_the_macro_average_counts_amc_once_and_resamples_each_benchmark():
    measured = {
        name: {"pass@1": (value, np.array([value - 0.1, value + 0.3]))}
        for name, value in (("amc23", 0.6), ("amc23_40", 0.9), ("aime24", 0.2))
    }
    over, means = results.macro(measured)
    assert over == ["amc23", "aime24"] and means["pass@1"][0] == pytest.approx(0.4)
    assert means["pass@1"][1] == pytest.approx([0.3, 0.7])
    assert results.macro({"amc23_40": measured["amc23_40"]})[0] == ["amc23_40"]


# comparison


def test_a_comparison_is_paired(tmp_path):
    """B solves one answer more of every problem: the difference is certain, however much the problems differ."""
    a = scored(tmp_path / "a", {f"p{i}": i for i in range(15)})
    b = scored(tmp_path / "b", {f"p{i}": i + 1 for i in range(15)}, tokens=lambda k: 60)
    metrics = compare.compare(a, b)["benchmarks"]["mine"]["metrics"]
    assert metrics["pass@1/change"] == pytest.approx([1 / 16] * 3)
    assert metrics["pass@1/a"][0] == pytest.approx(7 / 16) and metrics["pass@1/a"][1] < 6 / 16
    assert metrics["tokens/all/change"] == [-40, -40, -40]
    back = compare.compare(b, a)["benchmarks"]["mine"]["metrics"]
    assert back["pass@1/change"] == pytest.approx([-1 / 16] * 3)
    itself = compare.compare(a, a)
    assert itself["benchmarks"]["mine"]["metrics"]["pass@1/change"] == [0, 0, 0] and compare.notes(itself) == []


def test_a_comparison_of_different_things_is_refused_or_noted(tmp_path, capsys):
    a = scored(tmp_path / "a", {"p": 1, "q": 2})
    with pytest.raises(EvaluationError, match="benchmark mine is not the same in both: sha256 [0-9a-f]{64} in "):
        compare.compare(a, scored(tmp_path / "b", {"p": 1, "q": 2}, extra="?"))
    with pytest.raises(EvaluationError, match="no benchmark in common: mine and other"):
        compare.compare(a, scored(tmp_path / "c", {"p": 1, "r": 2}, name="other"))
    with pytest.raises(EvaluationError, match="is not a folder of `r3 eval`"):
        compare.compare(a, tmp_path)
    fewer = scored(tmp_path / "d", {"p": 1, "q": 2}, n=4)
    assert command.main(["compare", str(a), str(fewer), "--out", str(tmp_path / "out")]) == 0
    assert "note: the settings differ: n 16 and 4" in capsys.readouterr().out
    assert "| mine | 2 |" in (tmp_path / "out" / "compare.md").read_text()


def test_two_files_of_the_same_problems_compare_whatever_their_names_and_order(tmp_path, capsys):
    """p is solved by both, q by the second alone; the second file has the rows the other way round."""
    rows = [{"problem": text, "answer": "1", "responses": [r"\boxed{1}"]} for text in "pq"]
    first = write_jsonl(tmp_path / "base.jsonl", [rows[0], {**rows[1], "responses": [r"\boxed{2}"]}])
    second = write_jsonl(tmp_path / "trained.jsonl", [{**rows[1], "answer": "1.0"}, rows[0]])
    assert command.main(["score", str(first)]) == 0
    assert command.main(["compare", str(first), str(second)]) == 2
    assert f"is not scored yet; run `r3 eval score {second}` first" in capsys.readouterr().err
    assert command.main(["score", str(second)]) == 0
    found = compare.compare(first, second)
    metrics = found["benchmarks"]["base"]["metrics"]
    assert [metrics[f"pass@1/{side}"][0] for side in ("a", "b", "change")] == [0.5, 1.0, 0.5]
    assert metrics["pass@1/change"][1:] == [0.0, 1.0], "q changes and p does not"
    assert compare.notes(found) == ["base of A and trained of B hold the same problems"]
    write_jsonl(second, rows[:1])
    with pytest.raises(EvaluationError, match="was changed since it was scored"):
        compare.compare(first, second)


def test_one_file_at_two_limits_is_refused_whatever_its_names(tmp_path):
    a = scored(tmp_path / "a", {"p": 1, "q": 2})
    b = scored(tmp_path / "b", {"p": 1, "q": 2}, name="other")
    rows = plan.read_problems(b)
    plan.write_table(b / "problems.parquet", rows[:1], plan.PROBLEM)
    plan.write_table(b / "scores.parquet", pq.read_table(b / "scores.parquet").to_pylist()[:16], score.SCORE)
    with pytest.raises(
        EvaluationError, match="benchmark mine and other: 2 problems in .*, 1 in .*; use the same --limit"
    ):
        compare.compare(a, b)


# hostile files


CONTRACT = {"data_source": "d", "prompt": [{"role": "user", "content": "p"}], "reward_model": {"ground_truth": "1"}}
GOOD = {"problem": "p", "answer": "1", "responses": ["x"]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**GOOD, "response_tokens": -5}, "row 1: response_tokens must be whole numbers from 0 .*got -5"),
        ({**GOOD, "response_tokens": [2**31]}, "row 1: response_tokens must be"),
        ({**GOOD, "response_tokens": 1.5}, "row 1: response_tokens must be"),
        ({**GOOD, "response_tokens": "5"}, "row 1: response_tokens must be"),
        ({**GOOD, "response_tokens": {"a": 1}}, "row 1: response_tokens must be"),
        ({**GOOD, "response_tokens": True}, "row 1: response_tokens must be"),
        ({**GOOD, "responses": ["\ud800"]}, "row 1: responses holds half a character"),
        ({**GOOD, "problem": "\ud800"}, "row 1: problem holds half a character"),
        ({**GOOD, "answer": None}, "row 1: answer must not be empty"),
        (5, "every row must be a JSON object"),
    ],
)
def test_a_broken_row_is_named(row, message, tmp_path, capsys):
    file = write_jsonl(tmp_path / "in.jsonl", [{**GOOD, "problem": "whole"}, row])
    with pytest.raises(EvaluationError, match=f"{file}.*{message}"):
        score.read_responses(file)
    assert command.main(["score", str(file)]) == 2 and capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "in.jsonl.eval").exists()


@pytest.mark.parametrize(
    "change",
    [
        *({"prompt": value} for value in (None, [], "p", [5], [{"role": "user"}])),
        *({"reward_model": value} for value in (None, {}, "1")),
        *({"data_source": None}, {"extra_info": [1]}),
    ],
)
def test_a_broken_row_in_verls_format_is_named(change, tmp_path):
    file = write_jsonl(tmp_path / "in.jsonl", [{**CONTRACT, "response": "x"}, {**CONTRACT, "response": "x", **change}])
    with pytest.raises(EvaluationError, match=f"{file}, row 1: {next(iter(change))}"):
        score.read_responses(file)
    write_jsonl(file, [{**CONTRACT, "response": "x", "response_tokens": 7.0}])
    assert score.read_responses(file)[2][0]["response_tokens"] == 7


def test_a_row_that_accepts_several_answers_is_named_for_one_alone_is_graded_against(tmp_path):
    same, several = ({"ground_truth": truth} for truth in (["1/2", "0.5"], ["1", "2"]))
    file = write_jsonl(tmp_path / "in.jsonl", [{**CONTRACT, "response": "x", "reward_model": same}])
    assert score.read_responses(file)[1][0]["answer"] == "1/2"
    assert benchmarks.load(f"own={file}", tmp_path).problems[0].answer == "1/2"
    write_jsonl(file, [{**CONTRACT, "response": "x"}, {**CONTRACT, "response": "x", "reward_model": several}])
    message = f"{file}, row 1: any of the answers .*1.*2.* leave one"
    with pytest.raises(EvaluationError, match=message):
        score.read_responses(file)
    with pytest.raises(EvaluationError, match=message):
        benchmarks.load(f"own={file}", tmp_path)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"problem": ' * 100_000, "[1, ", "\xff"])
def test_a_file_that_is_no_json_is_refused(content, tmp_path):
    (tmp_path / "in.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(EvaluationError, match=f"^{tmp_path / 'in.json'}"):
        score.read_responses(tmp_path / "in.json")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("response_tokens", -5, "row 17: response_tokens must be 0 or more, got -5"),
        ("index", -1, "row 17: index must be 0 or more"),
        ("correct", None, "row 17: correct is null"),
        ("query_id", "other", "row 17: is there twice, or another row gives its problem another query_id"),
        ("sample", 0, "row 17: is there twice"),
    ],
)
def test_a_broken_row_of_the_scores_is_named(column, value, message, tmp_path, capsys):
    folder = scored(tmp_path / "a", {"p": 1, "q": 2})
    rows = pq.read_table(folder / "scores.parquet").to_pylist()
    rows[17][column] = value
    plan.write_table(folder / "scores.parquet", rows, score.SCORE)
    assert command.main(["compare", str(folder), str(folder)]) == 2
    error = capsys.readouterr().err
    assert f"{folder / 'scores.parquet'}, {message}" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("response_tokens", -5, "row 17: response_tokens must be"),
        ("response", None, "row 17: sample must be a number and response a text"),
        ("index", 9, "row 17: the plan has no problem 9 of benchmark mine"),
        ("query_id", "other", "row 17: is of query 'other'"),
    ],
)
def test_a_broken_row_of_the_answers_is_named(column, value, message, tmp_path):
    folder = scored(tmp_path / "a", {"p": 1, "q": 2})
    part = plan.parts(folder)[0]
    rows = pq.read_table(part).to_pylist()
    rows[17][column] = value
    plan.write_table(part, rows, plan.GENERATION)
    with pytest.raises(EvaluationError, match=message):
        score.grade_folder(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("model", None), ("model", {"path": 5}), ("benchmarks", {}), ("benchmarks", {"mine": 5}), ("sampling", {"n": -1})],
)
def test_a_broken_plan_is_refused(key, value, tmp_path):
    folder = scored(tmp_path / "a", {"p": 1}, n=2)
    content = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**content, key: value}))
    with pytest.raises(EvaluationError, match=f"plan.json: {key} is not that of a plan"):
        compare.compare(folder, folder)
    (folder / "plan.json").write_text('{"model": ' * 100_000)
    with pytest.raises(EvaluationError, match="is damaged"):
        compare.compare(folder, folder)


# the challenging subset


def test_the_subset_is_what_the_base_solved_at_most_once_in_its_first_16_answers(tmp_path):
    # The right answers come last: of 32 answers with 17 right ones, one is among the first 16.
    base = scored(tmp_path / "base", {"never": 0, "late": 16, "once": 17, "twice": 18, "always": 32}, n=32)
    found = hard.hard(base, [])
    wanted = [data.query_id(text) for text in ("never", "late", "once")]
    assert found["subset"]["benchmarks"]["mine"]["query_ids"] == wanted
    assert found["subset"]["benchmarks"]["mine"]["of"] == 5
    part = found["runs"][0]["benchmarks"]["mine"]
    assert list(part["pass_at_k"]) == ["1", "2", "4", "8", "16", "32"] and part["problems"] == 3
    assert part["pass_at_k"]["1"][0] == pytest.approx((0 + 16 + 17) / 32 / 3)
    assert part["pass_at_k"]["32"][0] == pytest.approx(2 / 3)


def test_answers_longer_than_the_limit_count_as_failed(tmp_path):
    """16 answers, the k-th of 1000 x k tokens, right ones last: within 4,096 tokens the first four right, if any."""
    successes = {"hard": 1, "none": 0}
    run = scored(tmp_path / "run", {"hard": 16, "none": 4}, tokens=lambda k: 1000 * (k + 1) if k < 8 else 8192)
    base = scored(tmp_path / "base", successes)
    part = hard.hard(base, [run])["runs"][1]["benchmarks"]["mine"]
    assert {limit: triple[0] for limit, triple in part["pass_at_16_by_limit"].items()} == {"4096": 0.5, "8192": 1.0}
    assert part["pass_at_16_by_limit"]["8192"] == part["pass_at_k"]["16"]


def test_the_command_writes_the_report_and_files_to_evaluate_the_subset_on(tmp_path, capsys):
    base = scored(tmp_path / "base", {"easy": 9, "hard": 0, "harder": 1})
    assert command.main(["hard", "--base", str(base)]) == 0
    printed = capsys.readouterr().out
    assert "mine, 2 of 3" in printed and f"hard_mine={base / 'hard' / 'hard_mine.parquet'}" in printed
    benchmark = benchmarks.load(f"hard_mine={base / 'hard' / 'hard_mine.parquet'}", tmp_path)
    assert [p.text for p in benchmark.problems] == ["hard", "harder"]
    # A run on that file alone answers the subset, under its own name of the benchmark.
    run = scored(tmp_path / "run", {"hard": 2, "harder": 256}, n=256, name="hard_mine")
    found = hard.hard(base, [run])
    assert list(found["runs"][1]["benchmarks"]["mine"]["pass_at_k"]) == [str(1 << power) for power in range(9)]
    written = json.loads((base / "hard" / "hard.json").read_text())
    assert written["runs"] == found["runs"][:1]


def test_a_base_or_run_that_cannot_answer_is_refused(tmp_path):
    few = scored(tmp_path / "few", {"p": 0}, n=4)
    with pytest.raises(EvaluationError, match="--base needs 16 answers per problem, got 4"):
        hard.hard(few, [])
    solved = scored(tmp_path / "solved", {"p": 16})
    with pytest.raises(EvaluationError, match="no problem was solved at most 1 time"):
        hard.hard(solved, [])
    base = scored(tmp_path / "base", {"p": 0})
    with pytest.raises(EvaluationError, match="has not answered all problems of the subset"):
        hard.hard(base, [scored(tmp_path / "other", {"q": 0})])


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
