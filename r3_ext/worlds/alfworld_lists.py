"""Lists of ALFWorld's games, which one brings, as rows to train on or to validate with.

    python -m r3_ext.worlds.alfworld_lists FOLDER --out train.parquet

FOLDER is one of its splits, as `json_2.1.1/train`. The list is that of its `game.tw-pddl` files by path, without those
that ALFWorld leaves out: not known to be solvable, or with sliced or movable objects. It is told with its digest: equal
digests are equal games, wherever they lie.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

from r3_ext.worlds.lists import ASKS_FOR_TAGS, list_digest, session_row, write_rows
from recipe.hgpo.environments.textworld_games import digest

WORLD = "alfworld"
LEFT_OUT = "movable", "Sliced"
ASKED = "Your task is to: "


def rows(folder: Path, split: str) -> list[dict]:
    """
    Raises:
        ValueError: there is no game in the folder, or one without a task.
    """
    found = []
    for path in sorted(folder.absolute().rglob("*.tw-pddl")):
        game = json.loads(path.read_text())
        if game.get("solvable") and not any(word in str(path.relative_to(folder.absolute())) for word in LEFT_OUT):
            found.append(row(path, game, split, len(found)))
    if not found:
        raise ValueError(f"no game.tw-pddl that is known to be solvable in {folder}")
    return found


def row(path: Path, game: dict, split: str, index: int) -> dict:
    _, asked, rest = game["grammar"].partition(ASKED)
    if not asked:
        raise ValueError(f"{path} does not say what its task is")
    task = rest.partition('"')[0].strip().rstrip(".")
    played = {"world": WORLD, "game": str(path), "sha256": digest(path)}
    kind = path.parent.parent.name.partition("-")[0]
    return session_row(played, kind, f"{task[:1].upper()}{task[1:]}.", split, index, ASKS_FOR_TAGS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a split of ALFWorld's games")
    parser.add_argument("--out", type=Path, required=True, help="parquet file of rows")
    args = parser.parse_args()
    try:
        listed = rows(args.folder, args.folder.name)
    except ValueError as error:
        parser.error(str(error))
    write_rows(args.out, listed)
    for kind, count in sorted(Counter(each["data_source"] for each in listed).items()):
        print(f"{count:5} {kind}")
    print(f"{len(listed):5} games, sha256 {list_digest(each['task']['sha256'] for each in listed)}")


if __name__ == "__main__":
    main()
