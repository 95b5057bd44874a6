"""Keys, tags and uids of rows, with types and back."""

import pytest
import torch
from tagged import PADDING, REPLAYED_RIGHT, RIGHT, WRONG, make_meta, make_row
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack

from recipe.common.queue import rows_of
from recipe.common.rows import (
    Origin,
    RowKey,
    RowTag,
    TrainedUid,
    groups_of,
    sessions_of,
    tags_of,
    uid_of,
    versions_of,
)
from verl.utils.tensordict_utils import list_of_dict_to_tensordict


def test_a_key_is_verls_text_and_back():
    key = RowKey("3f2b-11", session=7, index=2)
    assert str(key) == "3f2b-11_7_2" and RowKey.parse("3f2b-11_7_2") == key
    assert str(RowKey("u", 3)) == "u_3_0", "an answer of one turn is row 0 of its session"


def test_the_rows_of_a_session_are_in_the_order_of_its_turns():
    keys = [f"a_0_{index}" for index in (10, 9, 0)] + ["b_0_0", "a_1_0"]
    assert sessions_of(keys) == {("a", 0): [2, 1, 0], ("b", 0): [3], ("a", 1): [4]}


def test_a_session_was_written_by_all_versions_of_its_rows():
    first, second = ({"min_global_steps": step, "max_global_steps": step} for step in (3, 5))
    assert (versions_of(first), versions_of(first, second), versions_of(first, {})) == (1, 3, 1)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("u", TrainedUid("u")),
        ("u#replay", TrainedUid("u", is_replayed=True)),
        ("u#ranked", TrainedUid("u", is_ranked=True)),
    ],
)
def test_a_uid_says_what_became_of_its_row(text, expected):
    assert TrainedUid.parse(text) == expected and str(expected) == text
    assert expected.is_rescued == (text != "u")


def test_a_tag_survives_the_queue_beside_verls_own_entries():
    tag = RowTag(group="q", origin=Origin.REPLAYED, correct=True, score=1.5, grade=1.0, replay_age=3, versions=2)
    verls = {"status": "finished", "global_steps": 4, "prompt_len": 3, "response_len": 5, "seq_len": 8}
    read = RowTag.from_tag(verls | tag.to_tag())
    assert (read.prompt_len, read.response_len, read.seq_len) == (3, 5, 8)
    assert read.to_tag() == tag.to_tag() and not set(tag.to_tag()) & set(verls)
    assert {type(value) for value in RowTag().to_tag().values()} <= {str, bool, float, int, Origin}


def test_only_generated_rows_are_fresh():
    assert [RowTag.from_tag(tag).is_fresh for tag in (WRONG, REPLAYED_RIGHT, PADDING, {"is_padding": False})] == [
        True,
        False,
        False,
        True,
    ]


def test_rows_are_grouped_by_the_uid_of_their_key_without_padding():
    batch = make_meta({"a": [RIGHT, WRONG], "b": [RIGHT], "pad": [PADDING]})
    assert groups_of(batch.keys, tags_of(batch)) == {"a": [0, 1], "b": [2]}
    assert uid_of("3f2b-11_7_0") == uid_of("3f2b-11") == "3f2b-11"


@pytest.mark.parametrize("responses", [[(1, 2), (3,), (4, 5, 6)], [(1, 2), (3, 4), (5, 6)], [(1, 2)]])
def test_rows_come_out_as_they_went_in_whether_lengths_differ_or_not(responses):
    rows = [make_row(response=response, uid=f"u{number}") for number, response in enumerate(responses)]
    data = list_of_dict_to_tensordict(rows)
    assert data["responses"].is_nested == (len({len(response) for response in responses}) > 1)
    for before, after in zip(rows, rows_of(data), strict=True):
        assert before.keys() == after.keys()
        for name, value in before.items():
            assert torch.equal(after[name], value) if isinstance(value, torch.Tensor) else after[name] == value


def test_rows_of_reads_every_kind_of_non_tensor_column():
    columns = {
        "stack": NonTensorStack("a", "b"),
        "dicts": NonTensorStack({"x": 1}, {}),
        "none": NonTensorStack(None, 1),
    }
    rows = rows_of(TensorDict(columns, batch_size=2))
    assert rows == [{"stack": "a", "dicts": {"x": 1}, "none": None}, {"stack": "b", "dicts": {}, "none": 1}]
