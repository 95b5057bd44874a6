"""Rows whose data source verl has a reward for, in the shell: what is asked of them, what the tiny model is taught."""

import subprocess
import sys

import pandas
import pytest
from omegaconf import OmegaConf

from r3_ext.data import problems as data
from r3_ext.data import write
from r3_ext.data.check import check
from r3_ext.doctor.data_files import check_data
from r3_ext.doctor.finding import FAIL
from r3_ext.tiny.warm_start import form_of
from recipe.common.reward.judge import PROGRAMS_S, is_boxed, is_verls

PROMPT = [{"role": "user", "content": "?"}]


def row_of(source: str, truth, **columns) -> dict:
    return {"data_source": source, "prompt": PROMPT, "reward_model": {"ground_truth": truth}} | columns


def test_a_ground_truth_may_be_what_verls_reward_of_its_source_reads():
    truth = {"target": ["Beijing", "Peking"]}
    assert not check([row_of("searchR1_nq", truth)])
    [fault] = check([row_of("mine", truth)])
    assert fault.column == "reward_model.ground_truth"


@pytest.mark.parametrize("name", ["math", "aime24", "apps", "openai/gsm8k", "deepscaler"])
def test_rows_that_the_converter_wrote_are_known_by_it_and_not_by_their_name(name):
    row = write.to_row(data.Problem("1 + 1?", "2", name, 0), name, "test")
    assert is_boxed(row) and not is_verls(row)
    given = row | {"reward_model": {"style": "rule", "ground_truth": "2"}}  # as verl's and NuminaMath's scripts write
    assert is_verls(given) is (name != "deepscaler")


def test_the_doctor_says_what_verls_reward_lacks(tmp_path):
    file = tmp_path / "train.parquet"
    row = row_of("apps", '{"inputs": ["1"], "outputs": ["2"]}', extra_info={"index": 0})
    pandas.DataFrame([row] * 4).to_parquet(file)
    config = OmegaConf.create(
        {
            "data": {"train_files": str(file), "val_files": str(file), "train_batch_size": 1},
            "reward": {
                "reward_manager": {"source": "importlib", "module": {"path": "pkg://recipe.common.reward.manager"}},
                "reward_kwargs": {"grader_timeout_s": 5.0},
            },
        }
    )
    told = [finding for finding in check_data(config) if finding.level == FAIL]
    assert [finding.advice.partition(",")[0] for finding in told] == ["set it to 120"] * 2
    assert "train.parquet, data_source=apps: verl's reward of it runs the answers" in told[0].found
    config.reward.reward_kwargs.grader_timeout_s = PROGRAMS_S
    assert not [finding for finding in check_data(config) if finding.level == FAIL]


@pytest.mark.parametrize(
    ("source", "form"),
    [("openai/gsm8k", "#### {}"), ("math_dapo", r"\boxed{{{}}}"), ("numina_cn_k12", r"\boxed{{{}}}")]
    + [("mine", r"\boxed{{{}}}"), ("lighteval/MATH", r"\boxed{{{}}}")],
)
def test_the_tiny_model_is_taught_the_form_that_earns_something(source, form):
    assert form_of(row_of(source, "72"), "72") == form


@pytest.mark.parametrize(
    ("source", "asked", "form"),
    [
        ("math_dapo", "The last line should be Answer: $Answer.", "Answer: {}"),
        ("math_dapo", r"Put it in \boxed{}.", r"\boxed{{{}}}"),
        ("openai/gsm8k", r"Put it in \boxed{}.", "#### {}"),  # not what its reward reads
    ],
)
def test_where_several_forms_earn_something_it_is_taught_the_one_that_is_asked_for(source, asked, form):
    prompt = [{"role": "user", "content": f"What is 70 + 2? {asked}"}]
    assert form_of(row_of(source, "72") | {"prompt": prompt}, "72") == form


@pytest.mark.slow
def test_a_process_that_looks_at_such_rows_can_still_fork(tmp_path):
    """The embedded profile forks its processes, and a fork must not have Ray, which verl imports."""
    file = tmp_path / "train.parquet"
    pandas.DataFrame([row_of("openai/gsm8k", "72", extra_info={"index": 0})]).to_parquet(file)
    program = (
        "import sys; from r3_ext.data.check import read; "
        f"assert read({str(file)!r}).verls == {{'openai/gsm8k'}} and 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
