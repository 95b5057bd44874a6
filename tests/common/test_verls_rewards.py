"""Whoever changes from `main_ppo` to a recipe keeps the reward: every data source that verl knows is judged by verl.

The data sources are read from verl's own code, so that one which a later verl adds fails here until the table has it.
"""

import ast
import inspect
import json
from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from datasets import Dataset
from omegaconf import OmegaConf
from reward_workers import EOS, MAX_RESPONSE_LENGTH, OWN, make_worker, score, write_tokenizer

from recipe.common.outcome import Reading
from recipe.common.reward.judge import BOXED_STYLE, GRADER, PROGRAMS_S, RUN_PROGRAMS, VERL, judge_of, source_faults
from recipe.common.trainer.measured import rows_to_judge
from verl.utils.reward_score import default_compute_score


class Branch(NamedTuple):
    """One of `default_compute_score`."""

    sources: list[str]
    prefixes: list[str]
    """What a data source may begin with."""
    modules: frozenset[str]
    """Of verl's rewards."""

    @property
    def examples(self) -> list[str]:
        return [*self.sources, *(prefix + end for prefix in self.prefixes for end in ("", "24", "_2025"))]


def branches(node: ast.If) -> Iterator[Branch]:
    """Of an if and its elifs. A condition of another form than verl's has today fails."""
    sources, prefixes = [], []
    for condition in node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]:
        match condition:
            case ast.Compare(ast.Name("data_source"), [ast.Eq() | ast.In()], [value]):
                found = ast.literal_eval(value)
                sources += [found] if isinstance(found, str) else found
            case ast.Call(ast.Attribute(ast.Name("data_source"), "startswith"), [ast.Constant(value)]):
                prefixes.append(value)
            case _:
                raise AssertionError(f"verl chooses by {ast.unparse(condition)}: teach this test to read that")
    imports = [each for part in node.body for each in ast.walk(part) if isinstance(each, ast.ImportFrom)]
    yield Branch(sources, prefixes, frozenset(alias.name for each in imports for alias in each.names))
    match node.orelse:
        case [ast.If() as further]:
            yield from branches(further)
        case [ast.Raise()]:
            return
        case _:
            raise AssertionError("verl has a reward for sources that it does not name")


[FUNCTION] = ast.parse(inspect.getsource(default_compute_score)).body
[CHOICE] = [node for node in FUNCTION.body if isinstance(node, ast.If) and "data_source" in ast.unparse(node.test)]
BRANCHES = [*branches(CHOICE)]

PROGRAM = json.dumps({"inputs": ["3\n", "5\n"], "outputs": ["6\n", "10\n"]})
ANSWERS = {
    # verl's modules: the ground truth, right answers in the form that the prompts ask for, and wrong ones.
    ("gsm8k",): ("3780", ["so 63 * 60\n#### 3,780", "#### 3780"], ["#### 3781", r"\boxed{3780}", "It is 3780."]),
    ("math_reward",): (r"\frac{1}{2}", [r"so \boxed{\frac12}", r"it is $\boxed{\tfrac{1}{2}}$"], [r"\boxed{2}", "1/2"]),
    ("math_dapo",): ("34", ["So.\n\nAnswer: 34", "Answer: $34$", r"\boxed{34}"], ["Answer: 35", "34", r"\boxed{35}"]),
    ("prime_math",): ("12", [r"so \boxed{12}", r"The answer is \boxed{12}."], [r"\boxed{13}", r"\boxed{x}"]),
    ("geo3k",): ("21", [r"<think> 3 * 7 </think> \boxed{21}"], [r"<think> 3 * 7 </think> \boxed{22}", "21"]),
    ("prime_code", "sandbox_fusion"): (
        PROGRAM,
        ["```python\nprint(2 * int(input()))\n```"],
        ["```python\nprint(6)\n```", "```python\nprint(\n```", "6"],
    ),
    ("search_r1_like_qa_em",): (
        {"target": ["Beijing", "Peking"]},
        ["<answer> Beijing </answer>", "I know. <answer>the peking.</answer>"],
        ["<answer> Nanjing </answer>", "Beijing"],
    ),
}
LACKS = {"geo3k": "mathruler"}
"""Packages that verl's rewards need and verl does not install."""


def cases() -> Iterator[tuple]:
    for branch in BRANCHES:
        truth, right, wrong = ANSWERS[tuple(sorted(branch.modules))]
        lacking = [LACKS[name] for name in branch.modules if name in LACKS and find_spec(LACKS[name]) is None]
        skip = [pytest.mark.skip(reason=f"verl's reward needs {name}") for name in lacking]
        for source in branch.examples:
            yield pytest.param(source, truth, right, wrong, marks=skip, id=source)
            right, wrong = right[:1], wrong[:1]  # one code judges all of a branch, and programs take seconds


def test_the_table_has_every_reward_of_verls():
    assert {tuple(sorted(branch.modules)) for branch in BRANCHES} == {*ANSWERS}
    assert sum(len(branch.sources) for branch in BRANCHES) > 20  # the code was really read


def test_those_whose_answers_are_programs_are_known():
    [branch] = [branch for branch in BRANCHES if "prime_code" in branch.modules]
    assert sorted(branch.sources) == sorted(RUN_PROGRAMS) and not branch.prefixes


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """verl's reward worker as `main_ppo` has it, and with the recipe's manager."""
    tokenizer = write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    kwargs = f"length_bonus: false, length_bonus_max_tokens: 128, grader_timeout_s: {PROGRAMS_S}, grader_workers: 1"
    made = make_worker(tokenizer), make_worker(tokenizer, *OWN, f"+reward.reward_kwargs={{{kwargs}}}")
    yield made
    made[1].reward_manager.judges.close()


def outcome(result: dict) -> tuple[bool, float, float]:
    """Whether the recipe takes an answer for correct, its score before a bonus and what it earns."""
    row = {"extra_fields": result, "rm_scores": torch.tensor([result["reward_score"]], dtype=torch.float64)}
    tag = Reading(1.0, MAX_RESPONSE_LENGTH, EOS).tag({**row, "responses": torch.tensor([EOS])}, "q")
    return tag.correct, tag.grade, tag.score


@pytest.mark.parametrize(("source", "truth", "right", "wrong"), [*cases()])
def test_an_answer_is_worth_the_same_under_main_ppo_and_here(workers, source, truth, right, wrong):
    for response in (*right, *wrong):
        naive, ours = (score(worker, response, truth, data_source=source) for worker in workers)
        assert outcome(naive) == outcome(ours), response
        assert outcome(ours)[0] is (response in right), response
        told = naive["reward_extra_info"], ours["reward_extra_info"]
        assert told[1]["reward_error"] == 0.0 and told[0].get("pred") == told[1].get("pred")
        # Of a reward that is a number verl's manager says that number.
        assert told[1]["acc"] == float(told[0]["acc"] >= 1.0)


def test_the_length_bonus_is_on_top_and_of_right_answers_alone(workers, monkeypatch):
    config = workers[1].reward_manager.reward_config
    monkeypatch.setattr(workers[1].reward_manager, "reward_config", type(config)(True, 128, 1.0, 60.0, 1))
    right, wrong = (score(workers[1], text, "34", data_source="math_dapo") for text in ("Answer: 34", "Answer: 35"))
    assert right["reward_score"] == pytest.approx(1 + (1 - 11 / 128))
    assert wrong["reward_score"] == -1.0 and wrong["reward_extra_info"]["length_bonus"] == 0.0


CONFIG = OmegaConf.create(
    {"reward": {"reward_manager": {"source": "importlib", "module": {"path": OWN[2].partition("=")[2]}}}}
)


@pytest.mark.parametrize("branch", BRANCHES, ids=lambda branch: "-".join(sorted(branch.modules)))
def test_rows_that_ask_for_a_box_go_to_the_grader_whatever_they_are_called(branch):
    info = dict.fromkeys(("index", "split", "source"), "x")  # also what NuminaMath's preprocessors write
    for source in branch.examples:
        row = {"data_source": source, "ability": "math", "extra_info": info}
        assert judge_of(row | {"reward_model": {"style": BOXED_STYLE}}, CONFIG) == GRADER
        assert judge_of(row, CONFIG) == judge_of(row | {"reward_model": {"style": "rule"}}, CONFIG) == VERL


@pytest.mark.parametrize("source", ["mine", "gsm8k", "OpenAI/gsm8k", "deepscaler", "None", ""])
def test_verl_is_not_asked_for_what_it_does_not_know(source):
    assert judge_of({"data_source": source}, CONFIG) == GRADER
    with pytest.raises(NotImplementedError):
        default_compute_score(source, "", "")


def test_what_verls_reward_lacks_is_told_before_it_is_asked():
    rows = [{"data_source": source} for source in (*RUN_PROGRAMS, "openai/gsm8k", "mine")]
    told = [*source_faults(rows, CONFIG)]
    assert [fault.partition(":")[0] for fault in told] == [f"data_source={name}" for name in sorted(RUN_PROGRAMS)]
    assert all("grader_timeout_s is 5: set it to 120" in fault for fault in told)
    enough = OmegaConf.merge(CONFIG, {"reward": {"reward_kwargs": {"grader_timeout_s": PROGRAMS_S}}})
    assert not [*source_faults(rows, enough)]
    # As a trainer asks, of the rows of verl's datasets.
    table = Dataset.from_list([row | {"ability": "code", "extra_info": {"index": 0}} for row in rows])
    assert [*source_faults(rows_to_judge(SimpleNamespace(dataframe=table)), CONFIG)] == told
    assert rows_to_judge(SimpleNamespace(dataframe=table.select([4, 5]))) == rows_to_judge(object()) == []
    if find_spec("mathruler") is None:
        [fault] = source_faults([{"data_source": "hiyouga/geometry3k"}], CONFIG)
        assert "cannot be loaded (No module named 'mathruler'): install" in fault
