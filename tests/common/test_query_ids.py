"""What a problem is called: ids made of prompt and answer, and ids that do not tell problems apart."""

import pytest

from recipe.common.query_ids import check_query_ids, make_query_id


def chat(text: str) -> list[dict]:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]


def test_an_id_depends_on_messages_and_answer_alone():
    first = make_query_id(chat("1+1?"), "2")
    assert first == make_query_id([dict(reversed(turn.items())) for turn in chat("1+1?")], "2")
    assert (
        len({first, make_query_id(chat("1+1?"), "3"), make_query_id(chat("1+1"), "2"), make_query_id("1+1?", "2")}) == 4
    )
    assert len(first) == 16 and int(first, 16) >= 0


def test_an_id_is_the_same_on_every_machine():
    assert make_query_id(chat("1+1?"), ["2", "2.0"]) == "f009b871fd3ccd3f"


@pytest.mark.parametrize("hostile", ["\ud800", "", "\x00", "é" * 10_000])
def test_any_text_has_an_id(hostile):
    assert len(make_query_id(chat(hostile), hostile)) == 16


def test_a_problem_may_occur_in_several_rows():
    check_query_ids(["a", "b", "a"], [chat("x"), chat("y"), chat("x")])


@pytest.mark.parametrize("missing", [None, float("nan"), "", "  "])
def test_a_missing_id_is_refused_with_its_row(missing):
    with pytest.raises(ValueError, match=r"query_id is .* in row 1; give each problem an id"):
        check_query_ids(["a", missing], [chat("x"), chat("x")])


def test_an_id_that_the_history_would_not_take_is_refused_with_its_row():
    check_query_ids(["é" * 512], [chat("x")])
    with pytest.raises(ValueError, match=r"in row 0 has 1,026 bytes, 1,024 at most"):
        check_query_ids(["é" * 513], [chat("x")])


@pytest.mark.parametrize("ids", [["a", "a"], [1, "1"]])
def test_an_id_of_two_problems_is_refused_with_both(ids):
    with pytest.raises(ValueError, match=r"stands for different prompts, 'x\?' and 'y\?'"):
        check_query_ids(ids, [chat("x?"), chat("y?")])
