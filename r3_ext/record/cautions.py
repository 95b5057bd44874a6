"""What a run of the embedded profile on the user's own rows shows, and what not: said before any of its figures."""

from r3_ext.recipes import BASELINE, RECIPES
from r3_ext.settings.prepare import EMBEDDED, MODEL, TRAIN, VAL, named_by
from r3_ext.tiny.world import is_text


def what_it_shows(arguments: dict) -> str:
    """Two sentences; "" where the run's figures are what they seem: with a model of the user's, on problems that the
    tiny model was built for, or on another profile.

    arguments: `options`, `sources` and `overrides` of a start, as starts.jsonl has them.
    """
    options, sources = arguments["options"], arguments["sources"]
    named = named_by(arguments["overrides"])
    is_own = {TRAIN: "DATA" in sources or TRAIN in named, VAL: "VAL_DATA" in sources or VAL in named}
    if options.get("profile") != EMBEDDED or "MODEL" in sources or MODEL in named or not any(is_own.values()):
        return ""
    own = next((recipe for recipe in RECIPES.values() if options.get("method") in recipe.methods), BASELINE)
    trained = "the training" if own is BASELINE else f"{own.title}'s mechanisms"
    if is_text(options.get("world") or own.world):
        return (
            "This run shows that your tasks, their environment and the training work together in the real trainer. It "
            "does not show what a real model would learn from them: the tiny model here saw an expert play the games "
            "that are generated here and nothing else."
        )
    if "DATA" not in sources:
        known = "knows the arithmetic that is generated here and nothing else, so what it scores on your rows"
        end = "."
    elif is_own[VAL]:
        known = "was taught beforehand to recall the answers to its training problems and has never seen those that it "
        known, end = known + "is validated on, so its validation accuracy", "."
    else:
        known = "was taught beforehand to recall their answers, those that it is validated on too, so its validation "
        known, end = known + "accuracy", " and may fall while the reward rises."
    return (
        f"This run shows that your rows, their columns, the reward and {trained} work together in the real trainer. It "
        f"does not show what a real model would learn from them: the tiny model here {known} says nothing about a real "
        f"model{end}"
    )
