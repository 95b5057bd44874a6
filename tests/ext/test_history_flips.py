"""One flipped byte anywhere in a history: it is told, or it changes nothing that a command prints or training draws."""

import os
import random
import sqlite3
from collections import Counter
from contextlib import closing, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from r3_ext.r3.history.command import main
from recipe.r3.history.file import HistoryError
from recipe.r3.history.store import PLAIN, REFLECTION, History, Sample

FLIPS = int(os.environ.get("R3_FLIPS", "30"))
"""1000 of them take some eight minutes."""

TABLES = ("samples", "payloads", "statistics", "steps", "replays", "pins", "meta")
COMMANDS = {
    "check": ["check"],
    "show": ["show"],
    "show --query": ["show", "--query", "query 3"],
    **{name: ["query", name] for name in ("never-solved", "pass-rate", "replays")},
    **{f"SQL on {name}": ["query", f"SELECT * FROM {name}", "--csv"] for name in TABLES},
    "export": ["export", "out.parquet", "--abandoned"],
}
STEPS = 24


def add_step(history: History, step: int) -> None:
    """Answers of every length, so that some take several pages; some are evicted, and some replayed."""
    rng = np.random.default_rng(step)
    samples, replays = [], []
    for _ in range(60):
        tokens = rng.integers(0, 151_643, size=int(rng.choice([3, 40, 400, 12_000], p=[0.5, 0.4, 0.09, 0.01])))
        query, correct, variant = (
            f"query {rng.integers(40)}",
            bool(rng.integers(2)),
            str(rng.choice([PLAIN, REFLECTION])),
        )
        truncated, log_probs = bool(rng.integers(2)), -rng.random(len(tokens)) if rng.integers(2) else None
        samples.append(Sample(query, tokens, correct, float(correct), truncated, step, variant, log_probs))
        replays += [(old, PLAIN) for old in history.draw(query, True, 1, random.Random(step))]
    history.add(samples, step, replays, [("query 0", PLAIN)])


def make(path: str) -> None:
    """Several leaves to a table, overflow pages, free pages; evicted and abandoned samples; a checkpoint to go to."""
    with closing(History(path, 3)) as history:
        history.restore(0, "all", {"tokenizer": "151643 tokens abcdef012345", "model": "/models/tiny"})
        for step in range(1, STEPS + 1):
            add_step(history, step)
            if step % 6 == 0:
                history.pin(step)
            if step % 12 == 0:
                history.unpin(lambda pinned, step=step: 0 < pinned < step - 6)
        history.restore(STEPS - 6)
        add_step(history, STEPS - 5)
        history.pin(STEPS - 5)


def draws(history: History) -> list[tuple]:
    found = []
    for query in (f"query {number}" for number in range(0, 40, 3)):
        for selection in ("uniform", "lowest_entropy"):
            settings = {"variants": (PLAIN, REFLECTION), "selection": selection, "max_replays": 9}
            for s in history.draw(query, None, 4, random.Random(0), **settings):
                log_probs = None if s.log_probs is None else s.log_probs.tobytes()
                found.append((s.tokens.tobytes(), log_probs, s.correct, s.score, s.truncated, s.variant, s.step))
        found.append(history.success_rates([query], 1, (PLAIN, REFLECTION)))
        found.append(history.transfer([query]))
    return found


def trained(path: str) -> list:
    """What training draws when it goes on, after another step, and back at the checkpoint."""
    with closing(History(path, 3)) as history:
        found = [history.restore(STEPS - 5), draws(history)]
        add_step(history, STEPS - 4)
        found.append(draws(history))
        history.restore(STEPS - 6)
        return [*found, draws(history)]


def printed(path: str, argv: list[str]) -> tuple:
    """(None, what the command printed and wrote), or (the sentence of its error, "")."""
    out, err, file = StringIO(), StringIO(), Path(path).parent / "out.parquet"
    file.unlink(missing_ok=True)
    argv = [argv[0], path, *(str(file) if word == file.name else word for word in argv[1:])]
    with redirect_stdout(out), redirect_stderr(err):
        code = main(argv)
    if code == 0:
        return None, out.getvalue() + (str(file.read_bytes()) if file.exists() else "")
    assert code == 2 and err.getvalue().startswith("error: ") and err.getvalue().count("\n") == 1, err.getvalue()
    return err.getvalue(), ""


def answers(path: str, data: bytes, commands: dict) -> dict[str, tuple]:
    """What every command and training make of the bytes: (error, content)."""
    for end in ("-wal", "-shm"):
        if os.path.exists(path + end):
            os.remove(path + end)
    Path(path).write_bytes(data)
    found = {name: printed(path, argv) for name, argv in commands.items()}
    assert not os.path.exists(f"{path}-wal") and not os.path.exists(f"{path}-shm")
    try:
        found["training"] = None, trained(path)
    except HistoryError as error:
        found["training"] = str(error), ""
    return found


def flips(data: bytes, number: int, seed: int):
    """(place, bytes with one changed): page by page, half of the time a byte that is not zero."""
    size, rng = int.from_bytes(data[16:18], "big"), random.Random(seed)
    pages = len(data) // size
    for at in range(number):
        begin = at % pages * size
        used = [place for place in range(begin, begin + size) if data[place]] or [begin]
        place = rng.choice(used) if rng.random() < 0.5 else begin + rng.randrange(size)
        byte = (
            data[place] ^ (1 << rng.randrange(8)) if rng.random() < 0.5 else (data[place] + rng.randrange(1, 256)) % 256
        )
        yield place, data[:place] + bytes([byte]) + data[place + 1 :]


def tally(folder: Path, number: int, seed: int, commands=COMMANDS) -> tuple[Counter, list]:
    """How often each command told a flip or printed the same, and the flips after which one did neither."""
    path = str(folder / "history.sqlite")
    make(path)
    data = Path(path).read_bytes()
    whole = answers(path, data, commands)
    assert not any(error for error, _ in whole.values())
    counts, silent = Counter(), []
    for place, damaged in flips(data, number, seed):
        told = False
        for name, (error, content) in answers(path, damaged, commands).items():
            outcome = "told" if error else "same" if content == whole[name][1] else "silent"
            counts[name, outcome] += 1
            told |= bool(error)
            silent += [(place, name)] if outcome == "silent" else []
        counts["any", "told" if told else "same"] += 1
    return counts, silent


@pytest.mark.slow
def test_a_flipped_byte_is_told_or_changes_nothing_that_is_printed_or_drawn(tmp_path):
    counts, silent = tally(tmp_path, FLIPS, seed=0)
    print(sorted(counts.items()))
    assert silent == []
    assert counts["check", "told"] > 5 and counts["any", "same"] > 3


def pages_of(path: str) -> tuple[bytes, int, int]:
    """The file, its page size, and where the first page of the list of free ones begins."""
    make(path)
    data = Path(path).read_bytes()
    size, first = int.from_bytes(data[16:18], "big"), int.from_bytes(data[32:36], "big")
    assert first and int.from_bytes(data[36:40], "big") > 5
    return data, size, (first - 1) * size


def test_training_does_not_write_over_a_page_that_is_said_to_be_free(tmp_path):
    path = str(tmp_path / "history.sqlite")
    data, size, at = pages_of(path)
    with closing(sqlite3.connect(path)) as db:
        roots = [root for (root,) in db.execute("SELECT rootpage FROM sqlite_master WHERE rootpage > 0")]
    for page in (1, *roots):
        Path(path).write_bytes(data[: at + 8] + page.to_bytes(4, "big") + data[at + 12 :])
        with pytest.raises(HistoryError, match=f"page {page} is in use twice, or free and in use; the file is damaged"):
            History(path, 3)
        assert "sqlite: " in (printed(path, ["check"])[0] or "")
    assert len(roots) > 10


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (lambda free: 36, 1, "the list of free pages is broken|free pages are listed, and 1 counted"),
        (lambda free: 32, 0, "0 free pages are listed, and"),
        (lambda free: free, 9999, "the list of free pages is broken"),
        (lambda free: free + 4, 10**9, "the list of free pages is broken|free pages are listed"),
        (lambda free: free + 8, 9999, "the list of free pages is broken"),
        (lambda free: 52, 1, "it says of itself that it has pages of pointers"),
    ],
)
def test_a_broken_list_of_free_pages_is_told_before_training_writes(place, value, message, tmp_path):
    path = str(tmp_path / "history.sqlite")
    data, _, free = pages_of(path)
    at = place(free)
    Path(path).write_bytes(data[:at] + value.to_bytes(4, "big") + data[at + 4 :])
    with pytest.raises(HistoryError, match=message):
        History(path, 3)


def test_training_does_not_write_into_the_page_of_another_table(tmp_path):
    """The last page of the payloads, into which the next is written, is said to be one of the samples."""
    path = str(tmp_path / "history.sqlite")
    data, size, _ = pages_of(path)
    with closing(sqlite3.connect(path)) as db:
        roots = dict(db.execute("SELECT name, rootpage FROM sqlite_master WHERE name IN ('samples', 'payloads')"))
    ends = {name: (root - 1) * size + 8 for name, root in roots.items()}
    assert all(data[end - 8] == 5 for end in ends.values()), "both trees have inner pages"
    other = data[ends["samples"] : ends["samples"] + 4]
    Path(path).write_bytes(data[: ends["payloads"]] + other + data[ends["payloads"] + 4 :])
    with pytest.raises(HistoryError, match=f"page {int.from_bytes(other, 'big')} is in use twice"):
        History(path, 3)
