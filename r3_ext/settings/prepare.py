"""What a run trains: the model and the data files, prepared here unless given as DATA, VAL_DATA and MODEL.

Rows in verl's format are trained on as they are, from the file that was given wherever possible. Raw columns (problem
or question, and answer) are converted. Everything that a user can get wrong raises ValueError with a sentence.
"""

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from r3_ext.data import check as rows
from r3_ext.data import convert, read, write
from r3_ext.data import problems as data
from r3_ext.host.files import replacing, sha256
from r3_ext.settings.compose import EMBEDDED, quoted
from r3_ext.tiny.world import TextWorld, World
from recipe.common.config.row_rules import told_medium
from recipe.common.config.value_rules import path_fault

TRAIN, VAL, MODEL = "data.train_files", "data.val_files", "actor_rollout_ref.model.path"
VARIABLES = {"DATA": TRAIN, "VAL_DATA": VAL, "MODEL": MODEL}
READ_AS_PATTERN = re.compile(r"[*?\[\]{}$\\\n]|::|://")
"""What OmegaConf and HuggingFace's datasets do not take literally in a path."""


def model_and_data(
    profile: str,
    cache: Path,
    tiny_model: dict,
    say,
    overrides: Iterable[str] = (),
    build: bool = True,
    any_truth: bool = False,
) -> list[str]:
    """Overrides that name the model and the data files; what `overrides` name themselves is left to them.

    tiny_model: settings of the embedded profile's model, fields of `warm_start.Settings`.
    build: whether what is not given is made or fetched; the doctor looks at what is given only.
    any_truth: as of `rows.read`.

    Raises:
        ValueError: a file, model or setting that cannot be used, in one sentence.
    """
    named = named_by(overrides)
    given = {key: value for variable, key in VARIABLES.items() if (value := os.environ.get(variable))}
    for variable, key in VARIABLES.items():
        if key in given and key in named:
            raise ValueError(f"{variable}={given[key]} and the override {key}=... name the same thing: leave one out")
        if key in given:
            check_place(variable, given[key])
    check_place("--cache", str(cache))
    try:
        given |= {key: fetched(Path(cache), given[key], say) for key in (TRAIN, VAL) if key in given}
        for key in (VAL, TRAIN):
            if key in given:
                check_files(given[key], any_truth)
                given[key] = answerable(Path(cache), given[key], any_truth, say)
        choose = embedded if profile == EMBEDDED else on_gpus
        chosen = choose(Path(cache), given, named, tiny_model, say, build)
        return [override(key, value, Path(cache)) for key, value in chosen.items() if key not in named]
    except OSError as error:
        raise ValueError(f"{error.filename or 'a file'}: {error.strerror or error}") from error


def named_by(overrides: Iterable[str]) -> set[str]:
    """The settings of `VARIABLES` that overrides name."""
    keys = {override.lstrip("+").partition("=")[0] for override in overrides}
    return keys & {*VARIABLES.values()}


def check_place(name: str, path: str) -> None:
    """Refuse a path that cannot be used; one that does not exist passes."""
    if fault := path_fault(path):
        raise ValueError(f"{name}={path if len(path) < 100 else path[:90] + '...'}: {fault}; give another path")


def on_gpus(cache: Path, given: dict, named: set, tiny_model: dict, say, build: bool) -> dict:
    """What is given; DeepScaleR, and AIME 2024 for validation, from the hub where nothing is."""
    benchmarks = cache / "benchmarks"
    chosen = {MODEL: model(given[MODEL])} if MODEL in given else {}
    if isinstance(world := tiny_model.get("world"), TextWorld):
        return chosen | games(cache, world, given, named, say, build, asks_for_tags=True)
    if VAL in given:
        chosen[VAL] = validation_files(cache, given[VAL], say)
    needs_val = build and VAL not in given and VAL not in named
    needs_train = build and TRAIN not in given and TRAIN not in named
    # Own files are compared with the benchmarks that are here already: they need no hub.
    wanted = convert.BENCHMARK_IDS if needs_train else ("aime24",) if needs_val else ()
    for name in wanted:
        if not (benchmarks / f"{name}.parquet").exists():
            say(f"fetching the benchmark {name} from the Hugging Face hub")
            with_way_out(convert.benchmark, name, convert.BENCHMARK_IDS[name], benchmarks / f"{name}.parquet")
    if needs_val:
        chosen[VAL] = [benchmarks / "aime24.parquet"]
    if TRAIN in given:
        chosen[TRAIN] = training_files(cache, given[TRAIN], exclude(cache, chosen.get(VAL, [])), say)
    elif needs_train:
        excluded = exclude(cache, chosen.get(VAL, []))
        train = cache / f"deepscaler-{digest(excluded)}" / "train.parquet"
        if not train.exists():
            say("fetching DeepScaleR from the Hugging Face hub")
            with_way_out(convert.training_set, train, exclude=excluded)
            say(f"DeepScaleR: {convert.told(train)}")
        chosen[TRAIN] = [train]
    return chosen


def with_way_out(fetch, *args, **kwargs):
    try:
        return fetch(*args, **kwargs)
    except ValueError as error:
        raise ValueError(f"{error}: DATA to train on, VAL_DATA to validate on (with both, it is not asked)") from error


def embedded(cache: Path, given: dict, named: set, tiny_model: dict, say, build: bool) -> dict:
    """A tiny model and its problems, or the problems of DATA that it was taught; MODEL is trained as it is."""
    steps, chosen = tiny_model.get("steps"), {}
    if steps is not None and steps < 1:
        raise ValueError(f"--warm-start-steps must be at least 1, got {steps}")
    own_model = MODEL in given or MODEL in named
    if isinstance(world := tiny_model.get("world"), TextWorld):
        if own_model:
            own = {MODEL: model(given[MODEL])} if MODEL in given else {}
            return own | games(cache, world, given, named, say, build)
        return player(cache, world, given, steps, say) if build else games(cache, world, given, named, say, build)
    if own_model and (steps is not None or tiny_model.get("world", World()) != World()):
        raise ValueError(
            "--warm-start-steps and --world concern the tiny model that is built here: leave them out, "
            f"or unset MODEL and {MODEL}"
        )
    if VAL in given:
        chosen[VAL] = validation_files(cache, given[VAL], say)
    if own_model:
        if MODEL in given:
            chosen[MODEL] = model(given[MODEL])
        if TRAIN in given:
            if VAL not in chosen and VAL not in named:
                raise ValueError("MODEL with DATA on the profile embedded needs a file to validate on: set VAL_DATA")
            chosen[TRAIN] = training_files(cache, given[TRAIN], exclude(cache, chosen.get(VAL, [])), say)
        if build and (missing := {TRAIN, VAL} - {*chosen, *named}):
            from r3_ext.tiny import warm_start

            train, val = warm_start.problems(cache)
            chosen |= {key: [path] for key, path in ((TRAIN, train), (VAL, val)) if key in missing}
        return chosen
    source = given.get(TRAIN)
    held_out = exclude(cache, chosen.get(VAL, [])) if source else []
    if not build and not source:
        return chosen
    from r3_ext.tiny import warm_start  # imports torch, which is slow

    if build:
        say(f"tiny model and data: built once, in about a minute, then taken from {cache}")
        prepared = warm_start.prepare(cache, data=source, exclude=held_out, **tiny_model)
        chosen = {MODEL: str(prepared.model), TRAIN: [prepared.train], VAL: [prepared.val]} | chosen
    else:
        warm_start.course(source, warm_start.Settings(**tiny_model), held_out)
    return chosen


def games(
    cache: Path, world: TextWorld, given: dict, named: set, say, build: bool, asks_for_tags: bool = False
) -> dict:
    """Tasks of sessions: rows that are given, as they are, or games of a text world."""
    chosen = {key: read.local_files(given[key]) for key in (TRAIN, VAL) if key in given}
    if build and (missing := {TRAIN, VAL} - {*chosen, *named}):
        from r3_ext.worlds import lists  # imports TextWorld, which is slow, and may not be there

        made = lists.prepare(cache, lists.Games(world.seed), system=lists.ASKS_FOR_TAGS if asks_for_tags else "")
        say_lists(made.lists.values(), made.out_of_distribution, say)
        chosen |= {key: [path] for key, path in ((TRAIN, made.train), (VAL, made.val)) if key in missing}
    return chosen


def say_lists(told: Iterable[object], out_of_distribution: Path, say) -> None:
    """Which tasks there are: equal digests are equal tasks, wherever they lie."""
    for each in told:
        say(str(each))
    say(f"rows of new_names and new_level, out of distribution: {out_of_distribution}")


def player(cache: Path, world: TextWorld, given: dict, steps: int | None, say) -> dict:
    """A tiny model that saw an expert play, and games for it."""
    from r3_ext.worlds import lists, warm_start

    say(f"tiny model and games: made once, in a few minutes, then taken from {cache}")
    taught, chosen_games = {} if steps is None else {"steps": steps}, lists.Games(world.seed)
    tasks = lists.prepare(cache, chosen_games)
    say_lists(tasks.lists.values(), tasks.out_of_distribution, say)
    made = warm_start.prepare(cache, games=chosen_games, **taught)
    chosen = {MODEL: str(made.model), TRAIN: [made.train], VAL: [made.val]}
    return chosen | {key: read.local_files(given[key]) for key in (TRAIN, VAL) if key in given}


def model(source: str) -> str:
    """The absolute path of a local folder, or a name on the hub, which the doctor looks up."""
    path = Path(source).expanduser()
    if path.is_dir():
        return str(path.absolute())
    if path.exists() or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", source):
        raise ValueError(f"MODEL={source}: no such folder; name the folder of a model, or a model on the hub")
    return source


def fetched(cache: Path, source: str, say) -> str:
    """A local path; a data set on the hub, given as NAME or NAME:SPLIT, is put into the cache as it is."""
    name, _, split = source.partition(":")
    if Path(source).expanduser().exists() or read.local_files(name if split else source) is not None:
        return source
    output = cache / "hub" / f"{source.replace('/', '--').replace(':', '--')}.parquet"
    if not output.exists():
        say(f"fetching {source} from the Hugging Face hub")
        with replacing(output) as partial:
            read.load_from_hub(name, split or "train").to_parquet(str(partial))
    return str(output)


def exclude(cache: Path, val: list[Path]) -> list[str]:
    """Files whose problems are left out of training: the benchmarks in the cache and what is validated on."""
    return [str(path) for path in [*sorted((cache / "benchmarks").glob("*.parquet")), *val]]


def check_files(source: str, any_truth: bool) -> None:
    """Whether the files of `source` are all raw, or all in verl's format and then without a fault in any row, and with
    rows of each data source that can be answered right.

    Raises ValueError with file, row and column.
    """
    files = read.local_files(source)
    formats = {read.is_verl(read.columns_of(file)) for file in files}
    if len(formats) > 1:
        raise ValueError(f"{source}: some files are in verl's format and some are not; keep them in two folders")
    for file in files if True in formats else ():
        if told := told_medium(file):
            raise ValueError(f"{file} {told}")
        found = rows.read(file, any_truth=any_truth)
        if missing := ", ".join(found.missing()):
            raise ValueError(f"{file} lacks the column {missing} of verl's format; it has {', '.join(found.columns)}")
        if found.rows == 0:
            raise ValueError(f"{file} has no rows")
        if found.faults:
            others = f"; {len(found.faults) - 1} more kinds of fault" if len(found.faults) > 1 else ""
            raise ValueError(f"{file}, {found.faults[0]}; {found.faults[0].rule}{others}")
        if hopeless := found.asked.sentences(found.asked.hopeless()):
            raise ValueError(f"{file}, {hopeless[0]}; {rows.NO_ROW}")


def answerable(cache: Path, source: str, any_truth: bool, say) -> str:
    """A folder with the files of `source` in verl's format without the rows that cannot be answered right; `source`
    itself where there are none."""
    files = read.local_files(source)
    if not is_verl(files):
        return source
    found = {file: rows.read(file, any_truth=any_truth) for file in files}
    left_out = {file: data.asked.numbers for file, data in found.items()}
    for file, numbers in left_out.items():
        if numbers:
            reasons = "; ".join(found[file].asked.sentences())
            say(f"{file}: {len(numbers):,} of {found[file].rows:,} rows left out, as no answer is right: {reasons}")
    if not any(left_out.values()):
        return source
    folder = cache / f"answerable-{digest([source])}-{sha256(json.dumps(list(left_out.values())))[:8]}"
    for file, numbers in left_out.items():
        if not (output := folder / f"{file.stem}.parquet").exists():
            table, gone = read.to_table(file), set(numbers)
            write.write_table(output, table.filter([number not in gone for number in range(len(table))]))
    return str(folder)


def is_verl(files: list[Path]) -> bool:
    return read.is_verl(read.columns_of(files[0]))


def training_files(cache: Path, source: str, excluded: list[str], say) -> list[Path]:
    """Files to train on without the problems of the files in `excluded`; see the module's docstring."""
    files = read.local_files(source)
    folder = cache / f"{{}}-{digest([source, *excluded])}"
    if is_verl(files):
        keys = data.overlap_keys(excluded)
        return [unchanged(file, Path(str(folder).format("rows")), keys, say) for file in files]
    train = Path(str(folder).format("train")) / "train.parquet"
    if not train.exists():
        convert.training_set(train, source, exclude=excluded, max_problem_chars=rows.MAX_PROMPT_CHARS)
    say(f"{source}: {convert.told(train)}")
    return [train]


def validation_files(cache: Path, source: str, say) -> list[Path]:
    """The same for VAL_DATA, from which no problem of a benchmark is left out and whose order is kept."""
    files = read.local_files(source)
    if is_verl(files):
        return [unchanged(file, cache / f"rows-{digest([source])}", frozenset(), say) for file in files]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(source).stem) or "val"
    output = cache / f"val-{digest([source])}" / f"{name}.parquet"
    if not output.exists():
        convert.benchmark(name, source, output, rows.MAX_PROMPT_CHARS)
    say(f"{source}: {convert.told(output)}")
    return [output]


def unchanged(file: Path, folder: Path, keys: frozenset[str], say) -> Path:
    """The file itself, or its rows without those of benchmarks, each as it was, in a parquet file of its own.

    JSON becomes parquet in any case: verl would read times and dates out of its texts.
    """
    kept = [not bool(found & keys) for found in data.problem_keys(file)] if keys else None
    dropped = kept.count(False) if kept else 0
    if dropped:
        say(f"{file}: {dropped:,} of {len(kept):,} rows left out, as they are also in a benchmark or in VAL_DATA")
        if dropped == len(kept):
            raise ValueError(f"{file}: every row is also in a benchmark or in VAL_DATA; give other rows to train on")
    if not dropped and file.suffix == ".parquet":
        return file.absolute()
    output = folder / f"{file.stem}.parquet"
    if not output.exists():
        table = read.to_table(file)
        write.write_table(output, table.filter(kept) if dropped else table)
    return output


def digest(sources: Iterable[str]) -> str:
    """16 hex digits of what the files, folders and names on the hub hold; a name stands for itself."""
    paths = [Path(source).expanduser() for source in sources]
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    return sha256(*(file if file.is_file() else str(file) for file in files if not file.is_dir()))[:16]


def override(key: str, value: str | list[Path], cache: Path) -> str:
    """`key=value` as hydra reads it, whatever the paths are called."""
    values = [quoted(literal(str(item), cache)) for item in ([value] if isinstance(value, str) else value)]
    return f"{key}={values[0] if len(values) == 1 else '[' + ','.join(values) + ']'}"


def literal(path: str, cache: Path) -> str:
    """The absolute path, or that of a link to it where its name would be read as a pattern."""
    file = Path(path).absolute() if Path(path).exists() else Path(path)
    if not READ_AS_PATTERN.search(str(file)):
        return str(file)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", file.name)
    link = cache.absolute() / "links" / f"{sha256(str(file))[:16]}-{name}"
    if READ_AS_PATTERN.search(str(link)):
        raise ValueError(f"{link.parent}: the cache must not hold * ? [ ] {{ }} $ \\ or :: in its path; set --cache")
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(file)
    return str(link)
