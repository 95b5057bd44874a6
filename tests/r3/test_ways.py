"""By which prompt all-wrong groups are asked again: what each way found, the share that follows, and the choice."""

import json

import pytest

from recipe.common.rows import PLAIN, REFLECTION, RESTART, RowTag, reflection_uid
from recipe.r3.config.r3_config import ADAPTIVE
from recipe.r3.replay.ways import FLOOR, Tally, Ways, reflection_share, tallies


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
    again.load(tmp_path / "of an earlier version")
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
