"""What is refused of the rows, before any worker starts."""

import pytest
from datasets import Dataset
from omegaconf import OmegaConf

from recipe.rrl.config.rrl_config import RestartsConfig, RRLConfig, StatesConfig
from recipe.rrl.config.rrl_rules import rows_serve
from recipe.rrl.data_checks import check_data

ROWS = {"prompt": ["a", "b"], "solution": ["1", "2"], "agent_name": ["single_turn_agent", "mine"]}


def test_rows_of_one_turn_and_a_column_of_solutions_are_taken():
    check_data(Dataset.from_dict(ROWS), StatesConfig(path="x", reference="solution"))
    check_data(Dataset.from_dict({"prompt": ["a"]}), StatesConfig(path="x"))


def test_a_column_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(ValueError, match=r"which has prompt, solution, agent_name, got 'answer'; set .*reference=null"):
        check_data(Dataset.from_dict(ROWS), StatesConfig(path="x", reference="answer"))


def test_a_row_of_several_turns_is_refused_wherever_it_stands():
    rows = ROWS | {"agent_name": ["single_turn_agent", "tool_agent"]}
    with pytest.raises(ValueError, match=r"rows have tool_agent as their agent_name: a restart .*restarts.share=0"):
        check_data(Dataset.from_dict(rows), StatesConfig(path="x"))


def told_at_start(files, share=0.25, samples=-1, after=4, **data):
    data |= {"train_files": [str(file) for file in files], "train_batch_size": 2, "train_max_samples": samples}
    config = OmegaConf.create({"data": data, "trainer": {"total_epochs": 2, "val_only": False}})
    rrl = RRLConfig(collect_after=1, restarts=RestartsConfig(share=share, after=after))
    return [broken.told for broken in rows_serve(config, rrl)]


def test_before_a_start_the_rows_tell_whether_there_is_a_step_to_restart_in(tmp_path):
    Dataset.from_dict({"prompt": list("abcdef")}).to_parquet(tmp_path / "a.parquet")
    file = tmp_path / "a.parquet"
    assert told_at_start([file]) == [], "three steps an epoch"
    assert "restarts.after: 6 leaves no step to restart in, of the 6" in told_at_start([file], after=6)[0]
    assert "of the 4 that" in told_at_start([file], samples=5)[0], "five rows are two steps"
    assert told_at_start([file, file], after=6) == told_at_start([file], after=6, share=0) == []
    assert told_at_start([tmp_path / "b.parquet"]) == [], "a file that is not there yet"
    (tmp_path / "b.jsonl").write_text('{"prompt": "a"}\n' * 100)
    assert told_at_start([file, tmp_path / "b.jsonl"], after=6) == [], "its lines were not counted"
    assert told_at_start([file], after=6, custom_cls={"path": "mine.py", "name": "Mine"}) == []


def test_before_a_start_rows_of_several_turns_are_told(tmp_path):
    Dataset.from_dict({"prompt": list("abcdef"), "agent_name": [None] * 5 + ["tool_agent"]}).to_parquet(
        tmp_path / "a.parquet"
    )
    assert "rows have tool_agent as their agent_name" in told_at_start([tmp_path / "a.parquet"])[0]
    assert told_at_start([tmp_path / "a.parquet"], share=0) == []
