"""What a study of several experiments is to show and how: a YAML file, written and committed before its first cell.

    about: what is asked, and why so
    experiments:
      main: {arms: [grpo, r3], seeds: [0, 1, 2], tokens: 60000}
      neutral: {arms: [grpo, r3], seeds: [0, 1, 2], tokens: 60000, world: "mistaken=0"}
    hypotheses:
      gain: {says: R^3 ends above GRPO, contrast: {main/r3: 1, main/grpo: -1}, measure: accuracy, claim: above,
             bound: 0, matters: 0.05, family: main}

An experiment is a study of its own in OUT/FOLDER (`folder`, by default its name); two may share one, for instance to
add arms in some of its worlds.
"""

from dataclasses import MISSING, dataclass, fields
from pathlib import Path

import yaml

from r3_ext.study import arms
from r3_ext.study.hypotheses import MEASURES, Hypothesis


@dataclass(frozen=True)
class Experiment:
    name: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    tokens: int
    folder: str
    world: str = ""
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Design:
    about: str
    experiments: tuple[Experiment, ...]
    hypotheses: tuple[Hypothesis, ...]

    @property
    def budgets(self) -> dict[str, int]:
        """Tokens at which each folder is compared."""
        return {experiment.folder: experiment.tokens for experiment in self.experiments}


def read_design(file: Path) -> Design:
    """
    Raises:
        ValueError: the file is no design; the message names the entry, the rule and the value.
    """
    try:
        found = yaml.safe_load(file.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{file} cannot be read: {str(error).splitlines()[0]}") from None
    _require(isinstance(found, dict), file, "", "have the entries about, experiments and hypotheses", found)
    unknown = set(found) - {"about", "experiments", "hypotheses"}
    _require(not unknown, file, "", "have the entries about, experiments and hypotheses only", sorted(unknown))
    experiments = tuple(
        _experiment(file, name, {"folder": name, **entry}) for name, entry in _entries(file, found, "experiments")
    )
    _require(bool(experiments), file, "experiments", "hold at least one", None)
    for one in experiments:
        for other in experiments:
            same = (one.tokens, one.world, one.overrides) == (other.tokens, other.world, other.overrides)
            ok = one.folder != other.folder or same
            _require(ok, file, f"experiments.{one.name}", f"have the settings of {other.name}, or another folder", one)
    known = {f"{one.folder}/{arm}" for one in experiments for arm in one.arms}
    hypotheses = tuple(_hypothesis(file, name, entry, known) for name, entry in _entries(file, found, "hypotheses"))
    return Design(str(found.get("about", "")), experiments, hypotheses)


def _experiment(file: Path, name: str, entry: dict) -> Experiment:
    where = f"experiments.{name}"
    values = _values(file, where, Experiment, {"name": name, **entry})
    for key in ("arms", "seeds", "overrides"):
        value = values.get(key, [])
        _require(isinstance(value, list), file, f"{where}.{key}", "be a list", value)
        values[key] = tuple(value)
    for arm in values["arms"]:
        _require(arm in arms.ARMS, file, f"{where}.arms", f"be of {', '.join(arms.ARMS)}", arm)
    for key, least in (("seeds", 0), ("tokens", 1)):
        numbers = values[key] if key == "seeds" else (values[key],)
        ok = all(isinstance(number, int) and number >= least for number in numbers)
        _require(ok, file, f"{where}.{key}", f"be whole numbers from {least}", values[key])
    ok = Path(str(values["folder"])).name == values["folder"]
    _require(ok, file, f"{where}.folder", "be the name of a folder", values["folder"])
    return Experiment(**values)


def _hypothesis(file: Path, name: str, entry: dict, known: set[str]) -> Hypothesis:
    where = f"hypotheses.{name}"
    values = _values(file, where, Hypothesis, {"name": name, **entry})
    contrast = values["contrast"]
    _require(isinstance(contrast, dict) and bool(contrast), file, f"{where}.contrast", "be weights by arm", contrast)
    for arm, weight in contrast.items():
        _require(arm in known, file, f"{where}.contrast", "name FOLDER/ARM of the experiments", arm)
        _require(isinstance(weight, int | float), file, f"{where}.contrast.{arm}", "be a number", weight)
    measures = (*MEASURES, "speedup")
    _require(values["measure"] in measures, file, f"{where}.measure", f"be one of {measures}", values["measure"])
    ok = values["measure"] != "speedup" or len(contrast) == 2
    _require(ok, file, f"{where}.contrast", "name two arms, as the measure is a speed-up", contrast)
    _require(values["claim"] in ("above", "below"), file, f"{where}.claim", "be above or below", values["claim"])
    for key in ("bound", "matters"):
        _require(isinstance(values[key], int | float), file, f"{where}.{key}", "be a number", values[key])
    return Hypothesis(**values)


def _entries(file: Path, found: dict, key: str) -> list[tuple[str, dict]]:
    entries = found.get(key) or {}
    ok = isinstance(entries, dict) and all(isinstance(entry, dict) for entry in entries.values())
    _require(ok, file, key, "be entries by name", entries)
    return list(entries.items())


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
