"""Which box is the answer where some are blank, and what a blank one cannot do."""

import time

import pytest

from recipe.common.reward.math.answer_text import final_answer

BLANK = [
    "",
    " ",
    "{}",
    "$$",
    r"\,",
    r"\ ",
    r"\quad",
    "~",
    "...",
    r"\ldots",
    "\u2026",
    "\u200b",
    "\u00a0",
    r"\text{ }",
    "\n\n",
]


@pytest.mark.parametrize("blank", BLANK)
def test_a_blank_box_hides_no_answer(blank):
    assert final_answer(rf"It is \boxed{{5}}, in \boxed{{{blank}}} as asked.") == "5"
    assert final_answer(rf"It is \boxed{{5}}. \boxed{{{blank}}} \boxed{{{blank}}}") == "5"
    assert final_answer(rf"I write \boxed{{{blank}}}: \boxed{{5}}") == "5"


@pytest.mark.parametrize("mention", [r"`\boxed`", r"(\boxed)", r"\boxed.", r"\boxed"])
def test_the_command_alone_is_no_box(mention):
    assert final_answer(rf"It is \boxed{{5}}, as asked in {mention}") == "5"


@pytest.mark.parametrize(
    "response, answer",
    [
        (r"\boxed{}", None),
        (r"<think>\boxed{5}</think> \boxed{}", None),  # a blank box does not lead back into the thinking
        (r"<think>\boxed{5}</think> \boxed{6} \boxed{}", "6"),
        (r"\boxed{5} no: \boxed{6} \boxed{}", "6"),  # one answer, not two tries
        (r"\boxed{5} \boxed{?}", "?"),  # withdrawn
        (r"\boxed{5} \boxed{-}", "-"),
        (r"\boxed{5} \boxed{\{\}}", r"\{\}"),  # the empty set is an answer
        (r"\boxed{5} \boxed{\emptyset}", r"\emptyset"),
        (r"\boxed{5} \boxed{0}", "0"),
        (r"\boxed{5} \boxed{", None),
        (r"\boxed{5} \boxed 6", None),
        (r"\boxed{1 or 2} \boxed{}", "1 or 2"),
        (r"\boxed{\boxed{5}} \boxed{}", "5"),
        (r"\boxed{5 \boxed{}}", r"5 \boxed{}"),
    ],
)
def test_the_last_box_that_holds_something_is_the_answer(response, answer):
    assert final_answer(response) == answer


@pytest.mark.parametrize(
    "response",
    [
        r"\boxed{}" * 200_000,
        r"\boxed{" * 200_000 + "}" * 200_000,
        r"\boxed{" + " " * 2_000_000 + "}",
        (r"\boxed{" + " " * 3_990 + "}") * 500,
        r"\boxed{{}" * 200_000,
        r"\boxed" * 300_000,
        r"\boxed." * 300_000,
    ],
    ids=lambda response: repr(response[:16]),
)
def test_megabytes_of_boxes_are_no_answer_at_once(response):
    started = time.monotonic()
    assert final_answer(response) is None or len(final_answer(response)) < 4000
    assert time.monotonic() - started < 10
