"""What a user may type wrongly, command by command: a sentence, an exit code that is not 0, no traceback, no byte lost.

One folder serves all cases: none may change it. Nothing here starts Ray or trains.
"""

import hashlib
import os
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from r3_ext import cli
from r3_ext.record import folder as run_folder
from r3_ext.run import command as launch
from r3_ext.run import train
from r3_ext.run.start import settle
from r3_ext.settings.compose import compose_config

pytestmark = pytest.mark.slow
SOURCES = ("DATA", "VAL_DATA", "MODEL", "R3_PROFILE", "R3_DEVICE")


def put(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def finished_run(name: str) -> Path:
    start = settle(
        launch.parse(["--run", name, "--profile", "embedded", "--method", "r3"], False), False, lambda: "embedded"
    )
    config = compose_config(start.compose(train.run_overrides(start.folder, start.method, False)))
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
    (here / "loop").symlink_to("loop")
    make_data(here / "data")
    return here


def make_data(folder: Path) -> None:
    put(folder / "text.parquet", "text\n")
    put(folder / "zero.parquet", "")
    put(folder / "broken.jsonl", '{"problem": "1+1", "answer": "2"}\n{"problem": \n')
    put(folder / "list.json", "[1, 2]")
    put(folder / "no_answer.jsonl", '{"problem": "1+1"}\n')
    put(folder / "no_problem.jsonl", '{"answer": "2"}\n')
    good = {
        "data_source": "own",
        "prompt": [{"role": "user", "content": "1+1?"}],
        "reward_model": {"ground_truth": "2", "style": "rule"},
    }
    parts = [{"role": "user", "content": [{"type": "text", "text": "1+1?"}]}]
    faults = {
        "good": {},
        "null_truth": {"reward_model": {"ground_truth": None, "style": "rule"}},
        "null_prompt": {"prompt": None},
        "blank_source": {"data_source": " "},
    }
    for name, fault in faults.items():
        pq.write_table(pa.Table.from_pylist([good, good | fault]), folder / f"{name}.parquet")
    pq.write_table(pa.Table.from_pylist([good | {"prompt": parts}] * 2), folder / "parts.parquet")
    pq.write_table(pa.table({"prompt": [good["prompt"]], "data_source": ["own"]}), folder / "no_truth.parquet")


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
    ("run --outputs file", "is a file or a link"),
    ("run --outputs file/below", "is a file or a link"),
    ("run --outputs '${oc.env:HOME}'", "rename it"),
    ("run --outputs /proc/nothing", "/proc cannot be written"),
    ("run --run foreign --profile embedded", "stays as it is"),
    ("run --warm-start-steps 0", "--warm-start-steps must be at least 1, got 0"),
    ("run --warm-start-steps many", "invalid int value"),
    ("run --profile gpu_1x80gb --warm-start-steps 5", "concerns the tiny model of the profile embedded: leave it out"),
    ("run --until-tokens 0", "--until-tokens must be at least 1, got 0"),
    ("run --until-tokens=-5", "--until-tokens must be at least 1, got -5"),
    ("run --change", "--change is for a run that there is already"),
    ("run --world seed=1 --profile gpu_1x24gb", "--world concerns the problems"),
    ("run --world seed=x", "--world seed must be a number"),
    ("run --world textworld", "r3 trains on answers of one turn; leave --world out, or take --method hgpo, gigpo"),
    ("run --method hgpo --world seed=3", "hgpo trains on sessions of several turns; take --world textworld"),
    ("run --until-turns 0", "--until-turns must be at least 1, got 0"),
    ("run --until-turns 5", "--until-turns counts turns of sessions: with answers of one turn take --until-tokens"),
    ("rehearse --method hgpo --until-turns 300", "--until-turns is not known in steps: leave it out"),
    ("rehearse --method dapo", "GRPO's steps beside those of r3"),
    ("study --world seed=1", "seed is given twice"),
    ("run --profile embedded algorithm.r3.replay.kk=1", "nearest one is algorithm.r3.replay.k"),
    ("run --profile embedded algorithm.r3.seed=1", "algorithm.r3.seed is gone since 0.2.0: set data.seed"),
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
    ("run --run a --world seed=1", '--world: null -> "seed=1"'),
    ("run --outputs " + "n" * 300, "name too long"),
    ("run --outputs loop", "a link to nowhere"),
    ("run --profile embedded hydra.nope=3", "a setting of hydra's own"),
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
    ("resume a 'a b'", "expected key=value"),
    ("resume a trainer.total_epochs", "expected key=value"),
    ("resume a data.train_files=a=b", "expected key=value"),
    ("resume a hydra.mode=MULTIRUN", "a setting of hydra's own"),
    ("resume a hydraxyz=3", "there is no setting hydraxyz"),
    ("resume " + "n" * 300, "File name too long"),
    ("resume a --until-tokens 0", "--until-tokens must be at least 1"),
]
STUDY = [
    ("study --tokens 0", "--tokens must be at least 1"),
    ("study --arms nope", "invalid choice: 'nope'"),
    ("study --seeds x", "invalid int value"),
    ("study --profile nope --arms grpo", "--profile must be one of"),
    ("study --summarise --out empty", "holds no study"),
    ("study --summarise --out study_broken", "not the plan of a study"),
    ("study --summarise --out study_curves", "curves.csv, line 2"),
    ("study --summarise --out study_columns", "the columns arm, seed, generated_tokens, accuracy are not all there"),
    ("study --profile embedded --arms grpo --out study", "holds a study of other cells"),
    ("study --profile embedded --arms grpo --out file", "is a file or a link"),
    ("study trainer.total_epoch=1 --profile embedded --arms grpo", "nearest one is trainer.total_epochs"),
    ("study --profile embedded --arms grpo --seeds 0 --out study_foreign", "stays as it is"),
]
DATA = [
    ("DATA=nowhere.parquet run --profile embedded", "no such file or folder"),
    ("DATA=nowhere.parquet run --profile gpu_1x24gb", "no such file or folder"),
    ("DATA=./nowhere run --profile embedded", "no such file or folder"),
    ("DATA=empty run --profile embedded", "no data file found"),
    ("DATA=file run --profile embedded", "file type must be one of"),
    ("DATA=data/text.parquet run --profile embedded", "text.parquet"),
    ("DATA=data/zero.parquet run --profile embedded", "the file is empty"),
    ("DATA=data/broken.jsonl run --profile embedded", "broken.jsonl, line 2"),
    ("DATA=data/list.json run --profile embedded", "JSON object"),
    ("DATA=data/no_answer.jsonl run --profile embedded", "no answer column; found problem"),
    ("DATA=data/no_problem.jsonl run --profile embedded", "no problem column; found answer"),
    ("DATA=data/null_truth.parquet run --profile embedded", "null_truth.parquet, row 1"),
    ("DATA=data/null_truth.parquet run --profile gpu_1x24gb", "null_truth.parquet, row 1"),
    ("DATA=data/null_prompt.parquet run --profile embedded", "null_prompt.parquet, row 1"),
    ("DATA=data/blank_source.parquet run --profile embedded", "blank_source.parquet, row 1"),
    ("DATA=data/parts.parquet run --profile embedded", "parts.parquet, row 0"),
    ("DATA=data/no_truth.parquet run --profile embedded", "no problem column; found data_source, prompt"),
    ("VAL_DATA=data/null_truth.parquet run --profile embedded", "null_truth.parquet, row 1"),
    ("DATA=data/good.parquet run --profile embedded data.train_files=x", "name the same thing"),
    ("MODEL=nowhere/at/all run --profile embedded", "no such folder"),
    ("MODEL=file run --profile embedded", "no such folder"),
    ("MODEL=empty run --profile embedded --warm-start-steps 5", "leave them out"),
    ("run --profile embedded trainer.total_epochs=abc", "trainer.total_epochs must be a whole number"),
    ("run --profile embedded trainer.total_epochs=0", "trainer.total_epochs must be a whole number"),
    ("run --profile embedded data.train_batch_size=-16", "data.train_batch_size must be"),
    ("run --profile embedded actor_rollout_ref.actor.optim.lr=fast", "actor_rollout_ref.actor.optim.lr must be"),
    ("run --profile embedded actor_rollout_ref.rollout.n=two", "actor_rollout_ref.rollout.n must be"),
    ("study trainer.test_freq=x --arms grpo --profile embedded --out new", "trainer.test_freq must be"),
    ("doctor --profile nope", "--profile must be one of"),
    ("doctor --method nope", "--method must be one of"),
    ("doctor --profile embedded trainer.total_epoch=1", "nearest one is trainer.total_epochs"),
    ("doctor --profile embedded trainer.total_epochs=abc", "trainer.total_epochs must be"),
]
REPORT = [
    ("report", "the following arguments are required"),
    ("report nowhere", "has no metrics.jsonl"),
    ("report file", "has no metrics.jsonl"),
    ("report empty", "has no metrics.jsonl"),
    ("report broken_run", "broken_run"),
]
RESULTS = [
    ("history", "the following arguments are required"),
    ("history show nowhere", "nowhere"),
    ("history show file", "file"),
    ("history show empty", "empty"),
    ("history query file 'SELECT 1'", "file"),
    ("history query empty 'SELECT 1'", "empty"),
    ("history export nowhere out.parquet", "nowhere"),
    ("history import outputs/new.sqlite file", "file"),
    ("eval compare nowhere nowhere", "nowhere"),
    ("eval compare file file", "file"),
    ("eval compare empty empty", "empty"),
    ("eval hard nowhere", "--base"),
    ("eval hard --base nowhere --out x nowhere", "nowhere"),
    ("eval rank nowhere --limit 5", "nowhere"),
    ("eval --model nowhere --benchmarks data/good.parquet", "--benchmarks: a name must be made of letters"),
    ("eval --benchmarks x", "--model"),
]
OTHERS = [
    ("", "the following arguments are required: command"),
    ("nope", "invalid choice: 'nope'"),
]


@pytest.mark.parametrize(
    ("line", "sentence"), OTHERS + RUN + RESUME + STUDY + DATA + RESULTS + REPORT, ids=lambda text: text[:60]
)
def test_a_wrong_input_is_told_in_a_sentence_and_costs_nothing(place, monkeypatch, capsys, line, sentence):
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "200")
    for name in SOURCES:
        monkeypatch.delenv(name, raising=False)
    before = contents(place)
    words = shlex.split(line)
    while words and (name := words[0].partition("=")[0]) in SOURCES:
        monkeypatch.setenv(name, words.pop(0).partition("=")[2])
    try:
        code = cli.main(words)
    except SystemExit as left:
        code = left.code
    told = capsys.readouterr()
    assert code not in (0, None)
    assert sentence in told.out + told.err
    assert "Traceback" not in told.out + told.err
    assert contents(place) == before
    assert sorted(os.listdir(place / "outputs")) == ["r3_embedded"], "no folder of a run that never was"
