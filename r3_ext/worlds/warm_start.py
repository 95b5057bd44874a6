"""The embedded profile's model and tasks for sessions: a tiny model that saw an expert play, and games to learn from.

python -m r3_ext.worlds.warm_start --cache .cache
"""

import argparse
import json
import random
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from r3_ext.host.files import key_of, replacing
from r3_ext.tiny import tiny_model
from r3_ext.tiny.warm_start import WarmStart
from r3_ext.worlds.lists import TRAIN, Games
from r3_ext.worlds.lists import prepare as prepare_tasks
from r3_ext.worlds.walks import State, Walks, example, walk_states, words

VERSION = 1
"""Part of the cache key: raise it when a change of the code changes what is taught."""
CHAT_TEMPLATE = tiny_model.CHAT_TEMPLATE.replace("<think>\\n", "")
"""An answer is a command, without thoughts before it."""


@dataclass(frozen=True)
class Settings:
    games: Games = field(default_factory=Games)
    walks: Walks = field(default_factory=Walks)
    steps: int = 480
    batch: int = 32
    memory: int = 2
    """Earlier turns that a prompt shows."""
    skill: float = 0.45
    """How often it is shown the expert's command; else any that is admissible."""

    def __post_init__(self):
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def prepare(cache: str | Path, **settings) -> WarmStart:
    """Paths of model folder, training and validation parquet; built once per settings, which are fields of `Settings`.

    Raises:
        ValueError: a setting out of range.
    """
    cache, chosen = Path(cache), Settings(**settings)
    tasks = prepare_tasks(cache, chosen.games)
    states = walk_states(tasks.lists[TRAIN], chosen.walks, cache)
    inputs = {"version": VERSION, "games": tasks.lists[TRAIN].digest, **asdict(chosen)}
    folder = cache / f"player-{key_of(inputs)}"
    if not folder.exists():
        with replacing(folder) as partial:
            report = {**teach(partial / "model", states, chosen), "inputs": inputs}
            (partial / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return WarmStart(folder / "model", tasks.train, tasks.val)


def teach(folder: Path, states: list[State], settings: Settings) -> dict:
    """A model that answers as the expert did, or another command, in worlds of permuted names."""
    rng = random.Random(settings.games.seed)

    def drawn() -> tuple[str, str]:
        return example(rng.choice(states), rng, settings.memory, settings.skill)

    texts = [" ".join(pair) for pair in (drawn() for _ in range(1000))]
    tokenizer = tiny_model.train_tokenizer([*texts, *words() * 8, *(f" {word}" for word in words() * 8)], 640)
    tokenizer.chat_template = CHAT_TEMPLATE
    model = tiny_model.build_model(tokenizer, settings.games.seed)

    def next_batch(_: float) -> list[tiny_model.Example]:
        pairs = list(islice(iter(drawn, None), settings.batch))
        prompts = [tiny_model.prompt_text(tokenizer, [{"role": "user", "content": text}]) for text, _ in pairs]
        answers = [command + tokenizer.eos_token for _, command in pairs]
        ids = [tokenizer(texts, add_special_tokens=False)["input_ids"] for texts in (prompts, answers)]
        return [tiny_model.Example(*each) for each in zip(*ids, strict=True)]

    report = tiny_model.train(model, next_batch, settings.steps)
    tiny_model.save(model, tokenizer, folder)
    return {"parameters": model.num_parameters(), "vocabulary": len(tokenizer), **report}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", required=True, help="folder for the results")
    parser.add_argument("--seed", type=int, default=Games.seed)
    parser.add_argument("--steps", type=int, default=Settings.steps)
    args = parser.parse_args()
    for path in prepare(args.cache, games=Games(args.seed), steps=args.steps):
        print(path)


if __name__ == "__main__":
    main()
