"""What a user may type wrongly, command by command: a sentence, an exit code that is not 0, no traceback, no byte lost.

One folder serves all cases: none may change it. Nothing here starts Ray or trains.
"""

import hashlib
import os
import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from r3_ext import cli, launch, run_folder
from r3_ext.config import compose_config
from r3_ext.start import settle

SOURCES = ("DATA", "VAL_DATA", "MODEL", "R3_PROFILE", "R3_DEVICE")


def put(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def finished_run(name: str) -> Path:
    start = settle(launch.parse(["--run", name, "--profile", "embedded", "--method", "r3"], False), False, "embedded")
    config = compose_config(start.compose(launch.run_overrides(start.folder, start.method, False)))
    start.folder.mkdir(parents=True)
    start.record(-1, config, {}, None)
    OmegaConf.save(config, start.folder / "config.yaml", resolve=True)
    run_folder.append(start.folder, "end", seconds=1.0, exit_code=0)
    put(start.folder / "metrics.jsonl", '{"step": 1}\n')
    return start.folder


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A working folder with runs, studies, folders of others and damaged files of all kinds."""
    here = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        for name in SOURCES:
            patch.delenv(name, raising=False)
        finished_run("a")
        damaged = finished_run("damaged")
        put(damaged / "config.yaml", "a: [\n")
        no_record = finished_run("no_record")
        put(no_record / "starts.jsonl", "\xff not JSON\n")
    put(here / "outputs/r3_embedded/foreign/metrics.jsonl", '{"step": 1}\n' * 50)
    put(here / "file", "text\n")
    put(here / "empty/x", "")
    put(here / "broken_run/metrics.jsonl", b"\xff\xfe\x00")
    put(here / "study/study.json", '{"tokens": 10}')
    put(here / "study_broken/study.json", "{")
    put(here / "study_curves/study.json", '{"tokens": 10}')
    put(here / "study_curves/curves.csv", "arm,seed,generated_tokens,accuracy\nr3,0,many,0.5\n")
    put(here / "study_columns/study.json", '{"tokens": 10}')
    put(here / "study_columns/curves.csv", "arm,seed\nr3,0\n")
    put(here / "study_foreign/grpo/seed_0/thesis.tex", "text")
    return here


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


RUN = [
    ("run --run ../x", "--run must be a name"),
    ("run --run 'a b'", "--run must be a name"),
    ("run --run a=b", "--run must be a name"),
    ("run --run a,b", "--run must be a name"),
    ("run --run ''", "--run must be a name"),
    ("run --run " + "n" * 101, "--run must be a name"),
    ("run --run é", "--run must be a name"),
    ("run --experiment ../../x", "--experiment must be a name"),
    ("run --experiment .hidden", "--experiment must be a name"),
    ("run --experiment a/b", "--experiment must be a name"),
    ("run --experiment '${oc.env:HOME}'", "--experiment must be a name"),
    ("run --profile nope", "--profile must be one of embedded"),
    ("run --profile ''", "--profile must be one of"),
    ("run --profile ../method/r3", "--profile must be one of"),
    ("run --method nope", "invalid choice: 'nope'"),
    ("run --nope", "unrecognized arguments: --nope"),
    ("run --outputs file", "is a file"),
    ("run --outputs file/below", "is a file"),
    ("run --outputs '${oc.env:HOME}'", "rename it"),
    ("run --outputs /proc/nothing", "/proc cannot be written"),
    ("run --run foreign --profile embedded", "stays as it is"),
    ("run --warm-start-steps 0", "--warm-start-steps must be at least 1, got 0"),
    ("run --warm-start-steps many", "invalid int value"),
    ("run --until-tokens 0", "--until-tokens must be at least 1, got 0"),
    ("run --until-tokens=-5", "--until-tokens must be at least 1, got -5"),
    ("run --change", "--change is for a run that there is already"),
    ("run --rambling --profile gpu_1x24gb", "--rambling concerns the problems"),
    ("run --profile embedded algorithm.r3.replay.kk=1", "nearest one is algorithm.r3.replay.k"),
    ("run --profile embedded algorithm.r3.repaly.k=1", "nearest one is algorithm.r3.replay.k"),
    ("run --profile embedded trainer.total_epoch=1", "nearest one is trainer.total_epochs"),
    ("run --profile embedded zzz=1", "there is no setting zzz"),
    ("run --profile embedded trainer.total_epochs", "expected key=value"),
    ("run --profile embedded trainer.total_epochs=[1", "expected key=value"),
    ("run --profile embedded data.train_files=a=b", "expected key=value"),
    ("run --profile embedded =3", "expected key=value"),
    ("run --profile embedded 'a b'", "expected key=value"),
    ("run --profile embedded '~trainer.nope'", "does not exist"),
    ("run --profile embedded 'trainer.total_epochs=${nope}'", "'nope' not found"),
    ("run --profile embedded trainer=3", "trainer"),
    ("run --profile embedded +profile=gpu_1x24gb", "profile"),
    ("run --run a --method grpo", '--method: "r3" -> "grpo"   (another run: needs --change)'),
    ("run --run a algorithm.r3.replay.k=7", "algorithm.r3.replay.k: 1 -> 7"),
    ("run --run a --profile gpu_1x24gb", '--profile: "embedded" -> "gpu_1x24gb"'),
    ("run --run a --rambling", "--rambling: false -> true"),
    ("run --run damaged", "config.yaml cannot be read"),
    ("run --run no_record --profile embedded", "stays as it is"),
]
RESUME = [
    ("resume", "the following arguments are required: RUN"),
    ("resume ''", "no run"),
    ("resume aa", "Did you mean r3_embedded/a?"),
    ("resume r3_embedded/b", "There are: r3_embedded/a"),
    ("resume a --outputs nowhere", "no run a: nowhere holds none"),
    ("resume empty", "no run empty"),
    ("resume foreign", "no run foreign"),
    ("resume no_record", "no run no_record"),
    ("resume damaged", "config.yaml cannot be read"),
    ("resume a data.seed=3", "data.seed: "),
    ("resume a data.train_batch_size=4", "needs --change"),
    ("resume a actor_rollout_ref.model.path=x", "needs --change"),
    ("resume a algorithm.r3.replay.kk=1", "nearest one is algorithm.r3.replay.k"),
    ("resume a --until-tokens 0", "--until-tokens must be at least 1"),
]
STUDY = [
    ("study --tokens 0", "--tokens must be at least 1"),
    ("study --jobs 0", "--jobs must be at least 1"),
    ("study --arms nope", "invalid choice: 'nope'"),
    ("study --seeds x", "invalid int value"),
    ("study --profile nope --arms grpo", "--profile must be one of"),
    ("study --summarise --out empty", "holds no study"),
    ("study --summarise --out study_broken", "not the plan of a study"),
    ("study --summarise --out study_curves", "curves.csv, line 2"),
    ("study --summarise --out study_columns", "the columns arm, seed, generated_tokens, accuracy are not all there"),
    ("study --profile embedded --arms grpo --out study", "holds a study of other cells"),
    ("study --profile embedded --arms grpo --out file", "is a file"),
    ("study trainer.total_epoch=1 --profile embedded --arms grpo", "nearest one is trainer.total_epochs"),
    ("study --profile embedded --arms grpo --seeds 0 --out study_foreign", "stays as it is"),
]
REPORT = [
    ("report", "the following arguments are required"),
    ("report nowhere", "has no metrics.jsonl"),
    ("report file", "has no metrics.jsonl"),
    ("report empty", "has no metrics.jsonl"),
    ("report broken_run", "broken_run"),
]
OTHERS = [
    ("", "the following arguments are required: command"),
    ("nope", "invalid choice: 'nope'"),
]


@pytest.mark.parametrize(("line", "sentence"), OTHERS + RUN + RESUME + STUDY + REPORT, ids=lambda text: text[:60])
def test_a_wrong_input_is_told_in_a_sentence_and_costs_nothing(place, monkeypatch, capsys, line, sentence):
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "200")
    for name in SOURCES:
        monkeypatch.delenv(name, raising=False)
    before = contents(place)
    try:
        code = cli.main(shlex.split(line))
    except SystemExit as left:
        code = left.code
    told = capsys.readouterr()
    assert code not in (0, None)
    assert sentence in told.out + told.err
    assert "Traceback" not in told.out + told.err
    assert contents(place) == before
    assert sorted(os.listdir(place / "outputs")) == ["r3_embedded"], "no folder of a run that never was"
