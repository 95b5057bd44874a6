"""What a run trains: the model and the parquet files, prepared here unless given as DATA, VAL_DATA and MODEL."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EMBEDDED = "embedded"
BENCHMARKS = ("aime24", "amc23", "math500", "minerva", "olympiadbench")


def model_and_data(profile: str, cache: Path, tiny_model: dict, say) -> list[str]:
    """Overrides that name the model and the parquet files: prepared here unless given as DATA, VAL_DATA and MODEL.

    tiny_model: settings of the embedded profile's model, fields of `warm_start.Settings`.
    """
    data, val, model = (os.environ.get(name) for name in ("DATA", "VAL_DATA", "MODEL"))
    if profile == EMBEDDED:
        from r3_ext.cpu import warm_start

        say(f"tiny model and data: built once, in about a minute, then taken from {cache}")
        prepared = warm_start.prepare(cache, data=data, **tiny_model)
        model, data, val = prepared.model, prepared.train, prepared.val
    else:
        data, val = prepare_deepscaler(cache, data, val, say)
    chosen = {"data.train_files": data, "data.val_files": val}
    overrides = [f"{key}={Path(path).resolve()}" for key, path in chosen.items()]
    return overrides + ([f"actor_rollout_ref.model.path={model}"] if model else [])


def prepare_deepscaler(cache: Path, data: str | None, val: str | None, say) -> tuple[str, str]:
    """DeepScaleR, and AIME 2024 for validation, as verl parquet; from the hub where no local file is given.

    Problems of the benchmarks in the cache and of `val` are left out of the training set.
    """
    scripts, benchmarks = ROOT / "examples" / "data_preprocess", cache / "benchmarks"
    # What is trained on without the hub is compared with the benchmarks that are here already.
    wanted = BENCHMARKS if data is None else () if val else ("aime24",)
    missing = [name for name in wanted if not (benchmarks / f"{name}.parquet").exists()]
    if missing:
        say(f"preparing the benchmarks {', '.join(missing)}")
        command = [sys.executable, scripts / "benchmarks.py", "--output-dir", benchmarks, "--only", *missing]
        subprocess.run(command, check=True)
    exclude = sorted(benchmarks.glob("*.parquet")) + ([Path(val)] if val else [])
    train = prepared_folder(cache, data, exclude) / "train.parquet"
    if not train.exists():
        say(f"preparing {data or 'DeepScaleR'}")
        command = [sys.executable, scripts / "deepscaler.py", "--output", train]
        command += (["--source", data] if data else []) + (["--exclude", *exclude] if exclude else [])
        subprocess.run(command, check=True)
    return str(train), val or str(benchmarks / "aime24.parquet")


def prepared_folder(cache: Path, data: str | None, exclude: list[Path]) -> Path:
    """Where the training set made of `data` without the problems in `exclude` is kept: named by what they hold."""
    digest = hashlib.sha256()
    for source in ([data] if data else []) + exclude:
        path = Path(source).expanduser()
        files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
        for file in files:
            # The id of a data set on the hub is its own name.
            digest.update(file.read_bytes() if file.is_file() else str(file).encode())
    name = "deepscaler" if data is None else "train"
    return cache / f"{name}-{digest.hexdigest()[:16]}"
