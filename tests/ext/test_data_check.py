"""Rows in verl's format: what is found in any of them, and how it is said."""

import json
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3_ext.data import check as rows

GOOD = {
    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "data_source": "mine",
    "query_id": "a",
    "extra_info": {"index": 1},
}
NAN = float("nan")


def turn(content) -> list[dict]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    "changed, column, found",
    [
        ({"prompt": None}, "prompt", "is None"),
        ({"prompt": NAN}, "prompt", "is nan"),
        ({"prompt": "1+1?"}, "prompt", "is '1+1?'"),
        ({"prompt": []}, "prompt", "is []"),
        ({"prompt": ["1+1?"]}, "prompt", "has a message 0 without a role: '1+1?'"),
        ({"prompt": [{"content": "1+1?"}]}, "prompt", "has a message 0 without a role"),
        ({"prompt": [{"role": " ", "content": "1+1?"}]}, "prompt", "has a message 0 without a role"),
        ({"prompt": turn(None)}, "prompt", "has a message 0 without content: None"),
        ({"prompt": turn(NAN)}, "prompt", "has a message 0 without content: nan"),
        ({"prompt": turn(" \n")}, "prompt", "has a message 0 without content"),
        ({"prompt": turn("\ud800")}, "prompt", "has a message 0 without content"),
        ({"prompt": [*turn("a"), *turn("")]}, "prompt", "has a message 1 without content: ''"),
        ({"prompt": turn([{"type": "image"}])}, "prompt", "has content in parts in message 0"),
        ({"prompt": turn("x" * 200_001)}, "prompt", "has 200,001 characters, over 200,000"),
        ({"reward_model": None}, "reward_model.ground_truth", "is None"),
        ({"reward_model": "2"}, "reward_model.ground_truth", "is None"),
        ({"reward_model": {"style": "rule"}}, "reward_model.ground_truth", "is None"),
        *(
            ({"reward_model": {"ground_truth": truth}}, "reward_model.ground_truth", f"is {truth!r}")
            for truth in (None, "", " ", NAN, [], [None], ["2", ""], {"a": 1}, True)
        ),
        ({"reward_model": {"ground_truth": "\ud800"}}, "reward_model.ground_truth", "holds half a character"),
        *(({"data_source": source}, "data_source", f"is {source!r}") for source in (None, "", NAN, 5)),
        *(({"query_id": query_id}, "query_id", f"is {query_id!r}") for query_id in (None, "", " ", NAN, ["a"])),
        ({"extra_info": "text"}, "extra_info", "is 'text'"),
    ],
)
def test_a_fault_is_found_in_its_column_and_in_no_other(changed, column, found):
    (fault,) = rows.check([GOOD, GOOD, GOOD | changed])
    assert (fault.row, fault.column, fault.more) == (2, column, 0)
    assert fault.found.startswith(found) and fault.rule


@pytest.mark.parametrize(
    "changed",
    [
        {"reward_model": {"ground_truth": ["5", "5.0"]}},
        {"reward_model": {"ground_truth": 5}},
        {"reward_model": {"ground_truth": [5, 0.5]}},
        {"query_id": 7},
        {"extra_info": None},
        {"prompt": turn("x" * 200_000)},
        {"prompt": [*turn("a"), {"role": "assistant", "content": "b"}, *turn("c")]},
        {"prompt": turn("é\u200b求")},
    ],
)
def test_what_is_used_is_let_through(changed):
    row = GOOD | changed
    assert rows.check([row, row]) == []
    del row["query_id"], row["extra_info"]
    assert rows.check([row]) == []


@pytest.mark.parametrize("truth", [{"target": ["Paris"], "at_least": 1}, None, "", "\ud800", [{"input": "1"}], True])
def test_a_reward_function_of_ones_own_may_be_given_any_ground_truth(truth):
    row = GOOD | {"reward_model": {"ground_truth": truth}}
    assert rows.check([row, row], any_truth=True) == []
    (fault,) = rows.check([row, GOOD | {"reward_model": {"ground_truth": 5}}], any_truth=True) or [None]
    alike = truth in (None, True)  # a missing one goes with any kind
    assert fault is None if alike else (fault.row, fault.column) == (1, "reward_model.ground_truth")


@pytest.mark.parametrize("reward", [None, "2", {"style": "rule"}])
def test_a_ground_truth_must_be_there_for_a_reward_function_too(reward):
    (fault,) = rows.check([GOOD, GOOD | {"reward_model": reward}], any_truth=True)
    assert (fault.row, fault.column, fault.found) == (1, "reward_model.ground_truth", "is missing")


def test_faults_of_one_column_are_counted_and_others_told_beside_them():
    no_truth = GOOD | {"reward_model": {"ground_truth": None}}
    faults = rows.check([GOOD, no_truth, GOOD | {"data_source": ""}, no_truth, no_truth])
    assert [str(fault) for fault in faults] == [
        "row 1: reward_model.ground_truth is None (2 further rows)",
        "row 2: data_source is ''",
    ]


@pytest.mark.parametrize("name", ["responses", "session_id", "response_mask"])
def test_a_column_that_verl_would_take_for_its_own_is_told(tmp_path, name):
    pq.write_table(
        pa.table({column: [value] for column, value in (GOOD | {name: 1, "level": 2}).items()}), tmp_path / "a.parquet"
    )
    (fault,) = rows.read(tmp_path / "a.parquet").faults
    assert (fault.column, fault.rule) == (name, "rename or drop the column")


@pytest.mark.parametrize("kind", ["parquet", "json", "jsonl"])
def test_any_row_of_any_kind_of_file_is_read(tmp_path, kind):
    """Beyond a batch of the reader, too; the rows to render hold each order of roles and the longest prompt."""
    content = [GOOD | {"query_id": str(number)} for number in range(5000)]
    content[4500] = GOOD | {"data_source": None}
    content[4501] = GOOD | {"prompt": [*turn("a"), {"role": "tool", "content": "b"}]}
    content[4503] = GOOD | {"prompt": [*GOOD["prompt"][:1], *turn("long" * 99)]}
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(content), path)
    else:
        lines = [json.dumps(row) for row in content]
        path.write_text("\n".join(lines) if kind == "jsonl" else f"[{','.join(lines)}]")
    data = rows.read(path)
    assert (data.rows, len(data.named_prompts)) == (5000, 5000)
    assert [str(fault) for fault in data.faults] == ["row 4500: data_source is None"]
    assert len(data.sample) == rows.SAMPLE_ROWS + 2
    for number in (4501, 4503):
        assert content[number]["prompt"] in data.sample


def test_a_date_without_like_in_python_is_told_beyond_the_first_batch(tmp_path):
    dates = pa.array([0] * 4999 + [2**50], pa.timestamp("ms"))
    table = pa.Table.from_pylist([GOOD] * 5000)
    for column in ("extra_info", "when"):
        values = pa.StructArray.from_arrays([dates], ["at"]) if column == "extra_info" else dates
        kept = table.drop_columns(["extra_info"]) if "extra_info" in table.column_names else table
        pq.write_table(kept.append_column(column, values), tmp_path / f"{column}.parquet")
        with pytest.raises(ValueError, match=f"{column}.parquet, row 4999: {column} cannot be read"):
            rows.read(tmp_path / f"{column}.parquet")


def test_sample_is_evenly_spaced():
    assert rows.spaced(3) == {0, 1, 2} and rows.spaced(128) == set(range(0, 128, 2)) and rows.spaced(0) == set()


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([GOOD]), path)
    assert rows.read(path).faults == []
    time.sleep(0.01)
    pq.write_table(pa.Table.from_pylist([GOOD | {"data_source": ""}]), path)
    assert len(rows.read(path).faults) == 1
