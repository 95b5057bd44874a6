"""By which prompt all-wrong groups are asked again: what each way found, the share that follows, and the choice."""

import json
import random
from dataclasses import replace

import pytest

from recipe.common.rows import PLAIN, REFLECTION, RESTART, RowTag, reflection_uid
from recipe.r3.config.r3_config import ADAPTIVE, SPARING
from recipe.r3.replay.ways import (
    ENOUGH,
    EVERY,
    FLOOR,
    Tally,
    Ways,
    as_they_came,
    further,
    in_vain,
    reflection_share,
    tallies,
)


def rows(uid: str, outcomes: str, length: int = 10, variant: str = PLAIN, group: str = "q") -> list[tuple[str, RowTag]]:
    """A row per letter: r is right, w is wrong."""
    return [
        (f"{uid}_{session}_0", RowTag(group=group, variant=variant, correct=letter == "r", response_len=length))
        for session, letter in enumerate(outcomes)
    ]


def found(reflection: tuple, plain: tuple) -> dict[str, Tally]:
    return {REFLECTION: Tally(*reflection), PLAIN: Tally(*plain), RESTART: Tally()}


def test_only_further_groups_of_all_wrong_ones_are_counted():
    batch = [
        *(rows("a", "ww") + rows(reflection_uid("a"), "wr", 20, REFLECTION)),  # found
        *(rows("b", "ww") + rows(reflection_uid("b"), "ww", 30, REFLECTION)),  # not found
        *(rows("h", "ww", group="p") + rows(reflection_uid("h"), "wr", 1, REFLECTION, group="p")),  # not drawable
        *(rows("c", "ww") + rows(reflection_uid("c"), "rw", 5)),  # found plainly
        *(rows("d", "rw") + rows(reflection_uid("d"), "rr", 7, REFLECTION)),  # planned for a group that is mixed
        *(rows("e", "rr") + rows(reflection_uid("e"), "rr", 7)),
        *rows(reflection_uid("f"), "rr", 9, REFLECTION),  # whose own group is gone
        *rows("g", "ww"),
    ]
    keys, tags = zip(*batch, strict=True)
    assert tallies(keys, tags, {"q"}) == found((3, 1, 102), (1, 1, 10))
    backwards = batch[::-1]
    assert tallies(*zip(*backwards, strict=True), {"q"}) == tallies(keys, tags, {"q"})


@pytest.mark.parametrize(
    ("reflection", "plain", "share"),
    [
        ((0, 0, 0), (0, 0, 0), 0.5),
        ((75, 8, 75 * 4000), (75, 18, 75 * 4000), 8.5 / 27),
        ((10, 5, 1000), (10, 5, 1000), 0.5),
        ((10, 5, 1000), (10, 5, 2000), (5.5 / 1150) / (5.5 / 1150 + 5.5 / 2150)),
        ((50, 0, 5000), (50, 50, 5000), FLOOR),
        ((50, 50, 5000), (50, 0, 5000), 1 - FLOOR),
        ((10, 0, 1000), (0, 0, 0), (0.5 / 1100) / (0.5 / 1100 + 0.5 / 100)),
    ],
)
def test_the_share_follows_what_was_found_for_a_token(reflection, plain, share):
    assert reflection_share(found(reflection, plain)) == pytest.approx(max(FLOOR, share))
    mirrored = reflection_share(found(plain, reflection))
    assert mirrored == pytest.approx(1 - max(FLOOR, share))


def test_the_unit_of_tokens_does_not_matter():
    one, thousand = found((9, 3, 70), (8, 5, 90)), found((9, 3, 70_000), (8, 5, 90_000))
    assert reflection_share(one) == pytest.approx(reflection_share(thousand))


def test_a_fixed_way_is_always_taken():
    assert {Ways(way, seed).way(f"q{n}", n) for way in (PLAIN,) for seed in (0, 1) for n in range(9)} == {PLAIN}
    assert {Ways(REFLECTION, 0).way(f"q{n}", n) for n in range(9)} == {REFLECTION}


def test_the_adaptive_choice_follows_the_share_and_the_seed_alone():
    ways = Ways(ADAPTIVE, 3, found((40, 2, 400), (40, 30, 400)))
    share = reflection_share(ways.found)
    drawn = {f"q{n}": ways.way(f"q{n}", 5) for n in range(4000)}
    assert sum(way == REFLECTION for way in drawn.values()) / 4000 == pytest.approx(share, abs=0.02)
    again = Ways(ADAPTIVE, 3, found((40, 2, 400), (40, 30, 400)))
    assert {query: again.way(query, 5) for query in reversed(drawn)} == drawn
    others = [Ways(ADAPTIVE, 4, ways.found).way(query, 5) for query in drawn], [ways.way(query, 6) for query in drawn]
    assert all(other != list(drawn.values()) for other in others)


def test_a_checkpoint_brings_back_what_was_found(tmp_path):
    ways = Ways(ADAPTIVE, 0)
    ways.see(*zip(*(rows("a", "ww") + rows(reflection_uid("a"), "wr", 20, REFLECTION)), strict=True), {"q"})
    ways.save(tmp_path / "global_step_1")
    again = Ways(ADAPTIVE, 0)
    again.load(tmp_path / "global_step_1")
    assert again.found == ways.found == found((1, 1, 40), (0, 0, 0))
    assert (again.again, again.came) == (Tally(1, 1, 40), Tally(1, 0, 20))
    again.load(tmp_path / "nothing")
    assert json.loads((tmp_path / "global_step_1" / "ways.json").read_text())["plain"]["asked"] == 0


def test_metrics_are_of_what_came_since_the_last_ones():
    ways = Ways(ADAPTIVE, 0)
    ways.see(*zip(*(rows("a", "ww") + rows(reflection_uid("a"), "wr", 20, REFLECTION)), strict=True), {"q"})
    first, second = ways.take_metrics(), ways.take_metrics()
    assert {name: first[f"reflection/by_reflection/{name}"] for name in ("asked", "found", "tokens")} == {
        "asked": 1,
        "found": 1,
        "tokens": 40,
    }
    assert first["reflection/by_plain/asked"] == second["reflection/by_reflection/asked"] == 0
    assert first["reflection/by_reflection/share"] == second["reflection/by_reflection/share"] > 0.5
    assert "reflection/by_reflection/share" not in Ways(PLAIN, 0).take_metrics()


def test_groups_that_waited_or_were_asked_again_do_not_count_as_they_came():
    waited = [(key, replace(tag, waited=True)) for key, tag in rows("w", "ww")]
    batch = [*rows("a", "wr", 3), *rows("b", "ww", 5), *rows("c", "rr", 7), *rows(reflection_uid("b"), "wr"), *waited]
    assert as_they_came(*zip(*batch, strict=True)) == Tally(3, 1, 30)


@pytest.mark.parametrize(
    ("again", "came", "vain"),
    [
        ((30, 4, 3200), (100, 50, 8000), True),  # of 20 that were to be expected
        ((30, 5, 3200), (100, 50, 8000), False),  # a quarter is not less than it
        ((ENOUGH, 0, ENOUGH * 160), (100, 50, 8000), True),
        ((ENOUGH, 0, ENOUGH * 160 - 1), (100, 50, 8000), False),  # too few to tell
        ((99, 0, 9900), (100, 0, 8000), False),  # plain prompts give nothing either
        ((0, 0, 0), (0, 0, 0), False),
    ],
)
def test_asking_in_vain(again, came, vain):
    assert in_vain(Tally(*again), Tally(*came)) is vain
    a_thousand = [Tally(asked, found, 1000 * tokens) for asked, found, tokens in (again, came)]
    assert in_vain(*a_thousand) is vain, "the unit of tokens does not matter"


def step_of(further: str, *plain: str) -> tuple:
    """Keys and tags of a batch: groups with these outcomes, each all-wrong one asked again with the next of `further`
    (r: found)."""
    batch, left = [], list(further)
    for number, outcomes in enumerate(plain):
        batch += rows(f"u{number}", outcomes, group=f"q{number}")
        if outcomes == "ww" and left:
            again = "wr" if left.pop(0) == "r" else "ww"
            batch += rows(reflection_uid(f"u{number}"), again, 10, REFLECTION, group=f"q{number}")
    return tuple(zip(*batch, strict=True))


class Anything:
    def __contains__(self, query: object) -> bool:
        return True


def test_what_was_planned_for_a_group_that_came_out_mixed_was_spent_too():
    keys, tags = zip(*rows("a", "wr"), *rows(reflection_uid("a"), "rr", 10, REFLECTION), strict=True)
    lost, of = zip(*rows(reflection_uid("gone"), "rr", 10, REFLECTION), strict=True)
    found = tallies(keys + lost, tags + of, {"q"})
    assert further(keys + lost, tags + of, found) == Tally(1, 0, 20)


def test_steps_rest_where_nothing_is_found_and_ask_again_once_something_is():
    ways, seen = Ways(SPARING, 0), []
    for step in range(600):
        seen.append(ways.rests(step))
        asked = "" if seen[-1] else "r" if step >= 300 else "w"
        ways.see(*step_of(asked, "ww", "wr"), Anything())
        assert ways.rests(step) is seen[-1], "what its batches say comes for the next step"
    # Half of the groups are mixed: after 24 that found nothing 12 were to be expected.
    first = 2 * ENOUGH
    assert not any(seen[:first]) and all(seen[step] == (step % EVERY != 0) for step in range(first, 301))
    assert not any(seen[-100:]), "what is found lately counts"
    steady = Ways(ADAPTIVE, 0)
    for _ in range(100):
        steady.see(*step_of("w", "ww", "wr"), Anything())
    assert not any(map(steady.rests, range(100))) and not steady.resting(1) and ways.resting(0)


@pytest.mark.parametrize(("mixed", "found", "low", "high"), [(0.05, 0.05, 0, 0.02), (0.5, 0.05, 0.5, 0.875)])
def test_steps_seldom_rest_where_asking_again_pays_as_well(mixed, found, low, high):
    """Of 16 groups a step four are asked at most; where few are mixed chance must not rest for long."""
    draw, rested = random.Random(0), []
    for _ in range(30):
        ways = Ways(SPARING, 0)
        for step in range(60):
            rested.append(ways.rests(step))
            plain = ["wr" if draw.random() < mixed else "ww" for _ in range(16)]
            asked = "".join("r" if draw.random() < found else "w" for _ in range(0 if rested[-1] else 4))
            ways.see(*step_of(asked, *plain), Anything())
    assert low <= sum(rested) / len(rested) <= high
