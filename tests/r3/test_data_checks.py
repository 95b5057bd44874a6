"""What the training set may not hold, with the settings under which it may not."""

import pytest
from datasets import Dataset

from recipe.r3.data_checks import check_data

SOONER, PLAINLY = {"algorithm.r3.reflection.when": "next_step"}, {"algorithm.r3.reflection.ask": "plain"}
VISIT = {"algorithm.r3.reflection.when": "next_visit"}
OFF = {"algorithm.r3.reflection.enable": False}


def check(with_settings, tokenizer, settings: dict, **columns) -> None:
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": "q"}]], **columns})
    check_data(rows, with_settings({"data.train_batch_size": 1, **settings}), tokenizer, None)


@pytest.mark.parametrize(
    ("settings", "columns", "message"),
    [
        (SOONER, {"__rollout_n__": [4]}, "reflection.when: next_step .* takes __rollout_n__ .*when=next_visit"),
        (SOONER, {"__do_sample__": [True]}, "reflection.when: next_step .* takes __do_sample__"),
        (SOONER | PLAINLY, {"agent_name": ["mine"]}, "reflection.ask: plain .*ask=reflection"),
    ],
)
def test_columns_that_an_answer_does_not_keep_are_refused_where_its_prompt_is_asked_again(
    with_settings, tokenizer, settings, columns, message
):
    with pytest.raises(ValueError, match=message):
        check(with_settings, tokenizer, settings, **columns)


@pytest.mark.parametrize("settings", [VISIT, SOONER | OFF])
def test_elsewhere_they_are_verls(with_settings, tokenizer, settings):
    check(with_settings, tokenizer, settings, __rollout_n__=[4], __do_sample__=[True], agent_name=["mine"])


def test_the_reflection_prompt_is_asked_whatever_agent_the_rows_name(with_settings, tokenizer):
    settings = SOONER | {"algorithm.r3.reflection.ask": "reflection"}
    check(with_settings, tokenizer, settings, agent_name=["mine"])
