"""What is refused of the rows, before any worker starts."""

import pytest
from datasets import Dataset

from recipe.rrl.config.rrl_config import StatesConfig
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
