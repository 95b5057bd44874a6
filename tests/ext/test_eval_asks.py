"""`r3 eval` asks what training asks: the system message, earlier turns, own wording and the template's arguments."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3_ext.data import problems as data
from r3_ext.data import write
from r3_ext.evaluate import EvaluationError, benchmarks, generate, hard, options, plan

SYSTEM = {"role": "system", "content": "Answer in German."}
TURNS = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello!"}]
SAMPLING = plan.Sampling(1, 8, 1.0, 1.0, 0, None)


def verl_row(asked: str, *before: dict) -> dict:
    prompt = [*before, {"role": "user", "content": asked}]
    return {"data_source": "own", "prompt": prompt, "reward_model": {"style": "rule", "ground_truth": "6"}}


class Tokenizer:
    """Renders messages and arguments as text, so that what was asked can be read."""

    chat_template = "there is one"

    def apply_chat_template(self, messages, add_generation_prompt, tokenize, return_dict, **more):
        assert add_generation_prompt and tokenize and not return_dict
        if any(message["role"] == "tool" for message in messages):
            raise ValueError("no tools")
        return list(map(ord, "|".join(f"{m['role']}: {m['content']}" for m in messages) + str(more or "")))

    def __call__(self, text, add_special_tokens):
        return {"input_ids": list(map(ord, text))}

    def decode(self, ids):
        return "".join(map(chr, ids))


class WithoutSpaces(Tokenizer):
    def decode(self, ids):
        return super().decode(ids).replace(" ", "")


@pytest.fixture
def asked(tmp_path, monkeypatch):
    import transformers

    def run(rows: list[dict], tokenizer=Tokenizer, **template_kwargs) -> list[str]:
        monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *args, **kwargs: tokenizer())
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "val.parquet")
        benchmark = benchmarks.load(f"own={tmp_path / 'val.parquet'}", tmp_path)
        model = {"path": "m", "fingerprint": "f"}
        content = plan.make_plan(model, [benchmark], SAMPLING, template_kwargs)
        plan.begin(tmp_path / "out", content, plan.problem_rows([benchmark], None))
        found = generate.prompts(tmp_path / "out", "m", False)
        return ["".join(map(chr, ids)) for ids in found.values()]

    return run


def test_verls_rows_are_asked_as_they_are(asked):
    own = "What is 3+3? Put the result in \\boxed{}."
    assert asked([verl_row(own, SYSTEM), verl_row(own, *TURNS), verl_row(own)]) == [
        f"system: Answer in German.|user: {own}",
        f"user: Hello.|assistant: Hello!|user: {own}",
        f"user: {own}",
    ], "three problems, as the same words after another message are another question"


def test_raw_rows_and_converted_ones_are_asked_with_the_instruction(asked, tmp_path):
    expected = ["user: What is 3+3?" + data.INSTRUCTION]
    assert asked([{"problem": "What is 3+3?", "answer": "6"}]) == expected
    problem = data.Problem("What is 3+3?", "6", "own", 0)
    assert problem.messages == write.to_row(problem, "own", "test")["prompt"]


def test_the_templates_arguments_reach_the_template_and_belong_to_the_plan(asked):
    rows = [verl_row("What is 3+3?")]
    assert asked(rows, enable_thinking=False) == ["user: What is 3+3?{'enable_thinking': False}"]
    with pytest.raises(
        EvaluationError, match=r"holds another evaluation: template_kwargs.enable_thinking \(False there"
    ):
        asked(rows, enable_thinking=True)
    assert options.key_values("--template-arg", ["enable_thinking=False", "effort=low", "k=3"]) == {
        "enable_thinking": False,
        "effort": "low",
        "k": 3,
    }


def test_a_tokenizer_that_loses_spaces_is_refused(asked):
    with pytest.raises(EvaluationError, match="comes back from its tokens as 'Howmanyare12and34"):
        asked([verl_row("What is 3+3?")], WithoutSpaces)


def test_what_the_template_does_not_take_is_a_sentence(asked):
    with pytest.raises(EvaluationError, match=r"the chat template does not take problem 0 of own \(no tools\)"):
        asked([verl_row("What is 3+3?", {"role": "tool", "content": "6"})])


def test_another_prompt_is_another_benchmark():
    plain = data.Problem("q", "1", "s", 0)
    own = data.Problem("q", "1", "s", 0, (SYSTEM, {"role": "user", "content": "q"}))
    assert benchmarks.content_hash([plain]) != benchmarks.content_hash([own])
    assert plain.query_id == data.query_id("q") != own.query_id


def test_folders_of_before_are_read(tmp_path):
    benchmark = benchmarks.Benchmark("b", "b.parquet", "h", [data.Problem("q", "1", "s", 0)])
    plan.begin(
        tmp_path,
        plan.make_plan({"path": "m", "fingerprint": "f"}, [benchmark], SAMPLING),
        [{"benchmark": "b", "index": 0, "query_id": "q", "problem": "q", "answer": "1"}],
    )
    table = pq.read_table(tmp_path / "problems.parquet").drop_columns(["prompt"])
    pq.write_table(table, tmp_path / "problems.parquet")
    [row] = plan.read_problems(tmp_path)
    assert plan.problem_of(row).messages == [{"role": "user", "content": "q" + data.INSTRUCTION}]


def test_the_hard_problems_keep_their_prompts(tmp_path):
    prompt = (SYSTEM, {"role": "user", "content": "q"})
    benchmark = benchmarks.Benchmark("b", "b.parquet", "h", [data.Problem("q", "1", "s", 0, prompt)])
    rows = plan.problem_rows([benchmark], None)
    plan.begin(tmp_path, plan.make_plan({"path": "m", "fingerprint": "f"}, [benchmark], SAMPLING), rows)
    found = {"subset": {"benchmarks": {"b": {"query_ids": [rows[0]["query_id"]]}}}}
    [file] = hard.write_problems(tmp_path, found, tmp_path)
    assert pq.read_table(file)["prompt"].to_pylist() == [list(prompt)]
