"""What a study of several experiments is to show and how: a YAML file, written and committed before its first cell.

    about: what is asked, and why so
    tuning: {measure: mean_accuracy, candidates: [slow, fast], like: {serr: r3}}
    experiments:
      slow: {arms: [grpo, r3], seeds: [100], tokens: 60000, overrides: [actor_rollout_ref.actor.optim.lr=1e-4]}
      fast: {arms: [grpo, r3], seeds: [100], tokens: 60000, overrides: [actor_rollout_ref.actor.optim.lr=4e-4]}
      main: {arms: [grpo, r3], seeds: [1, 2, 3], tokens: 60000, tuned: true}
    hypotheses:
      gain: {says: R^3 ends above GRPO, contrast: {main/r3: 1, main/grpo: -1}, measure: accuracy, claim: above,
             bound: 0, matters: 0.05, family: main}

An experiment is a study of its own in OUT/FOLDER (`folder`, by default its name); two may share one, for instance to
add arms in some of its worlds. Arms that train on sessions have `turns` in the place of `tokens`.

In a `tuned` one every arm takes the overrides of the candidate that did best with it by the measure, on average over
the candidates' worlds, the first of equals; arms under `like` take another arm's.
A contrast names FOLDER/ARM, or FOLDER/ARM@TOKENS for another budget than the experiment's.
"""

import math
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

import yaml

from r3_ext.study import arms
from r3_ext.study.hypotheses import MEASURES, Hypothesis, place_of
from r3_ext.tiny.world import parse


@dataclass(frozen=True)
class Experiment:
    name: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    tokens: int
    """The budget of a cell; of arms that train on sessions turns."""
    folder: str
    world: str = ""
    overrides: tuple[str, ...] = ()
    tuned: bool = False


@dataclass(frozen=True)
class Tuning:
    measure: str
    candidates: tuple[str, ...]
    """Experiments."""
    like: dict[str, str]
    """Arms that take another arm's choice."""


@dataclass(frozen=True)
class Design:
    about: str
    experiments: tuple[Experiment, ...]
    hypotheses: tuple[Hypothesis, ...]
    tuning: Tuning | None = None

    @property
    def budgets(self) -> dict[str, int]:
        """Tokens at which each folder is compared."""
        return {experiment.folder: experiment.tokens for experiment in self.experiments}

    @property
    def worlds(self) -> dict[str, tuple[int, ...]]:
        """Planned worlds by FOLDER/ARM."""
        found: dict[str, tuple[int, ...]] = {}
        for experiment in self.experiments:
            for arm in experiment.arms:
                key = f"{experiment.folder}/{arm}"
                found[key] = tuple(sorted({*found.get(key, ()), *experiment.seeds}))
        return found


def choices(design: Design, curves: dict) -> dict[str, Experiment]:
    """The candidate that did best, for each arm of the tuned experiments.

    curves: by FOLDER/ARM and world.

    Raises:
        ValueError: a cell of the tuning is missing.
    """
    tuning = design.tuning
    candidates = [one for name in tuning.candidates for one in design.experiments if one.name == name]
    found = {}
    for arm in {arm: None for one in design.experiments if one.tuned for arm in one.arms}:
        tried, means = tuning.like.get(arm, arm), []
        for candidate in candidates:
            cells = curves.get(f"{candidate.folder}/{tried}", {})
            values = [MEASURES[tuning.measure](cells[w], candidate.tokens) for w in candidate.seeds if w in cells]
            if len(values) < len(candidate.seeds) or not all(map(math.isfinite, values)):
                raise ValueError(
                    f"{arm} is tuned by the cells of {tried} in {candidate.name}, which are not all there: train the "
                    f"experiments {', '.join(tuning.candidates)} first"
                )
            means.append(sum(values) / len(values))
        found[arm] = candidates[means.index(max(means))]
    return found


class _Loader(yaml.SafeLoader):
    """Refuses what YAML would let vanish: an entry with the name of another."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_design(file: Path) -> Design:
    """
    Raises:
        ValueError: the file is no design; the message names the entry, the rule and the value.
    """
    try:
        found = yaml.load(file.read_text(), _Loader)  # noqa: S506, a SafeLoader
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise ValueError(f"{file} cannot be read: {' '.join(str(error).split())}") from None
    parts = ("about", "tuning", "experiments", "hypotheses")
    _require(isinstance(found, dict), file, "", f"have the entries {', '.join(parts)}", found)
    unknown = [key for key in found if key not in parts]
    _require(not unknown, file, "", f"have the entries {', '.join(parts)} only", unknown)
    experiments = tuple(
        _experiment(file, name, {"folder": name, **entry}) for name, entry in _entries(file, found, "experiments")
    )
    _require(bool(experiments), file, "experiments", "hold at least one", None)
    for one in experiments:
        for other in experiments:
            same = (one.tokens, one.world, one.overrides, one.tuned) == (
                *(other.tokens, other.world, other.overrides, other.tuned),
            )
            ok = one.folder != other.folder or same
            _require(ok, file, f"experiments.{one.name}", f"have the settings of {other.name}, or another folder", one)
    tuning = _tuning(file, found["tuning"], experiments) if "tuning" in found else None
    untuned = [one.name for one in experiments if one.tuned and tuning is None]
    _require(not untuned, file, "tuning", "be there for the experiments that are tuned", untuned)
    known = {f"{one.folder}/{arm}": one.tokens for one in experiments for arm in one.arms}
    hypotheses = tuple(_hypothesis(file, name, entry, known) for name, entry in _entries(file, found, "hypotheses"))
    return Design(str(found.get("about", "")), experiments, hypotheses, tuning)


def _tuning(file: Path, entry: object, experiments: tuple[Experiment, ...]) -> Tuning:
    _require(isinstance(entry, dict), file, "tuning", "have the entries measure, candidates and like", entry)
    values = _values(file, "tuning", Tuning, {"like": {}, **entry})
    _require(values["measure"] in MEASURES, file, "tuning.measure", f"be one of {tuple(MEASURES)}", values["measure"])
    by_name = {one.name: one for one in experiments}
    names = _list(file, "tuning.candidates", values["candidates"], str)
    _require(bool(names), file, "tuning.candidates", "name at least one experiment", names)
    for name in names:
        ok = name in by_name and not by_name[name].tuned
        _require(ok, file, "tuning.candidates", "name experiments that are not tuned themselves", name)
    like = values["like"]
    ok = isinstance(like, dict) and {*like, *like.values()} <= set(arms.ARMS)
    _require(ok, file, "tuning.like", "name an arm for each of some arms", like)
    tried = set.intersection(*(set(by_name[name].arms) for name in names))
    for arm in [arm for one in experiments if one.tuned for arm in one.arms]:
        _require(like.get(arm, arm) in tried, file, "tuning", "try every arm that is tuned, or name one like it", arm)
    return Tuning(values["measure"], names, like)


def _experiment(file: Path, name: str, entry: dict) -> Experiment:
    where, of_sessions = f"experiments.{name}", "turns" in entry
    _require(not (of_sessions and "tokens" in entry), file, where, "have tokens or turns, not both", entry)
    entry = {("tokens" if key == "turns" else key): value for key, value in entry.items()}
    values = _values(file, where, Experiment, {"name": name, **entry})
    for key, kind in {"arms": str, "seeds": int, "overrides": str}.items():
        values[key] = _list(file, f"{where}.{key}", values.get(key, []), kind)
    for arm in values["arms"]:
        _require(arm in arms.ARMS, file, f"{where}.arms", f"be of {', '.join(arms.ARMS)}", arm)
    for key, least in (("seeds", 0), ("tokens", 1)):
        numbers = values[key] if key == "seeds" else (values[key],)
        ok = bool(numbers) and all(type(number) is int and number >= least for number in numbers)
        _require(ok, file, f"{where}.{key}", f"be whole numbers from {least}", values[key])
    _require(bool(values["arms"]), file, f"{where}.arms", "name at least one arm", values["arms"])
    unit = arms.unit_of(values["arms"])
    _require((unit == arms.TURNS) == of_sessions, file, where, f"count its budget in {unit}", sorted(entry))
    folder = values["folder"]
    ok = isinstance(folder, str) and Path(folder).name == folder and folder != ".."
    _require(ok, file, f"{where}.folder", "be the name of a folder", folder)
    _require(isinstance(values.get("tuned", False), bool), file, f"{where}.tuned", "be true or false", entry)
    world = values.get("world", "")
    _require(isinstance(world, str), file, f"{where}.world", "be a text", world)
    try:
        parse(f"{world},seed=0")  # the seed is the cell's
    except ValueError as error:
        raise ValueError(f"{file}: {where}.world: {error}") from None
    return Experiment(**values)


def _hypothesis(file: Path, name: str, entry: dict, known: dict[str, int]) -> Hypothesis:
    where = f"hypotheses.{name}"
    values = _values(file, where, Hypothesis, {"name": name, **entry})
    contrast = values["contrast"]
    _require(isinstance(contrast, dict) and bool(contrast), file, f"{where}.contrast", "be weights by arm", contrast)
    for arm, weight in contrast.items():
        at, tokens = place_of(str(arm), {name.rpartition("/")[0]: tokens for name, tokens in known.items()})
        ok = at in known and 0 < tokens <= known[at]
        _require(ok, file, f"{where}.contrast", "name FOLDER/ARM of the experiments, within their budget", arm)
        _number(file, f"{where}.contrast.{arm}", weight)
    ok = abs(sum(contrast.values())) < 1e-9
    _require(ok, file, f"{where}.contrast", "have weights that add up to 0", contrast)
    _require(values["measure"] in MEASURES, file, f"{where}.measure", f"be one of {tuple(MEASURES)}", values["measure"])
    _require(values["claim"] in ("above", "below"), file, f"{where}.claim", "be above or below", values["claim"])
    for key in ("bound", "matters"):
        _number(file, f"{where}.{key}", values[key])
    _require(values["matters"] >= 0, file, f"{where}.matters", "be at least 0", values["matters"])
    for key in ("says", "family"):
        _require(isinstance(values[key], str), file, f"{where}.{key}", "be a text", values[key])
    return Hypothesis(**values)


def _number(file: Path, where: str, value: object) -> None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    _require(ok, file, where, "be a number", value)


def _list(file: Path, where: str, value: object, kind: type) -> tuple:
    _require(isinstance(value, list), file, where, "be a list", value)
    ok = all(type(item) is kind for item in value) and len({*value}) == len(value) if _hashable(value) else False
    _require(ok, file, where, f"be different {'numbers' if kind is int else 'texts'}", value)
    return tuple(value)


def _hashable(value: list) -> bool:
    return all(isinstance(item, str | int | float) for item in value)


def _entries(file: Path, found: dict, key: str) -> list[tuple[str, dict]]:
    entries = found.get(key) or {}
    ok = isinstance(entries, dict) and all(isinstance(entry, dict) for entry in entries.values())
    _require(ok, file, key, "be entries by name", entries)
    return [(str(name), entry) for name, entry in entries.items()]


def _values(file: Path, where: str, cls: type, entry: dict) -> dict:
    """`entry` as keyword arguments of a dataclass."""
    known = {field.name: field for field in fields(cls)}
    for key in entry:
        _require(key in known, file, where, f"have no other entries than {', '.join(known)}", key)
    missing = [name for name, field in known.items() if field.default is MISSING and name not in entry]
    _require(not missing, file, where, f"have {', '.join(missing)}", sorted(entry))
    return dict(entry)


def _require(ok: bool, file: Path, where: str, rule: str, value: object) -> None:
    if not ok:
        raise ValueError(f"{file}: {where or 'the design'} must {rule}, got {value!r}")
