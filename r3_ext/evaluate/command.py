"""`r3 eval`: generate answers of a model to benchmarks, score them, and compare.

    r3 eval --model MODEL --benchmarks aime24,math500,amc23,minerva,olympiadbench --n 16 --max-tokens 32768
    r3 eval --model MODEL --benchmarks mine=problems.jsonl --out outputs/eval/mine
    r3 eval score FOLDER                         score again what is there; nothing is generated
    r3 eval score released.jsonl --out FOLDER    answers of somebody else: columns problem, answer, responses
    r3 eval compare A B                          is B better than A? paired over problems
    r3 eval hard --base BASE --runs A B          problems that the base solves at most once in 16
    r3 eval rank FOLDER --limit 8192             does the ranking reward foresee what cut-off answers become?

The same command goes on with an interrupted evaluation. Exit code 2 on an
error of the user, 1 when generation fails, 130 on Ctrl-C.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from r3_ext.evaluate import EvaluationError, benchmarks, compare, generate, hard, plan, results, score
from r3_ext.evaluate.options import engine_args, key_values, make_parser, parse_generation
from r3_ext.host import private_network, supervise
from r3_ext.host.files import write_text
from r3_ext.host.hardware import core_count, list_gpus
from r3_ext.record.console import RunDisplay, sayer
from r3_ext.record.failure import error_lines
from r3_ext.run.environment import environment


def visible_gpus() -> list[str]:
    """Ids of the GPUs that this process may use."""
    chosen, count = os.environ.get("CUDA_VISIBLE_DEVICES"), len(list_gpus())
    return [str(gpu) for gpu in range(count)] if chosen is None else [g for g in chosen.split(",") if g and count]


def rank_count(asked: str, gpus: list[str], settings: dict) -> int:
    """Number of engines; each takes tensor_parallel_size x pipeline_parallel_size GPUs."""
    share = settings.get("tensor_parallel_size", 1) * settings.get("pipeline_parallel_size", 1)
    most = len(gpus) // share if gpus else core_count()
    if asked == "auto":
        ranks = most if gpus else 1
    else:
        ranks = int(asked) if asked.isdecimal() else 0
    if not 1 <= ranks <= most:
        what = f"{len(gpus)} GPUs, {share} for each engine" if gpus else f"{most} cores"
        raise EvaluationError(f"--data-parallel must be auto or a number from 1 to {most} ({what}), got {asked}")
    return ranks


def evaluate(argv: list[str], console: Console, say: Callable) -> int:
    args = parse_generation(argv, __doc__)
    sampling = plan.Sampling(args.n, args.max_tokens, args.temperature, args.top_p, args.seed, args.limit)
    gpus = visible_gpus()
    settings = engine_args(args.engine_arg, bool(gpus))
    ranks = rank_count(args.data_parallel, gpus, settings)
    specs = args.benchmarks.split(",")
    chosen = [benchmarks.load(spec, args.data) for spec in specs]
    if len({benchmark.name for benchmark in chosen}) < len(specs):
        raise EvaluationError(f"--benchmarks: every name must come once, got {args.benchmarks}")
    for benchmark in chosen:
        say(f"{benchmark.name}: {len(benchmark.problems):,} problems, sha256 {benchmark.hash}{benchmark.dropped}")
    model = plan.model_folder(args.model)
    say(f"model: {args.model}, reading its weights")
    content = {"path": str(model), "fingerprint": plan.fingerprint(model)}
    folder = args.out or Path("outputs/eval") / Path(args.model).resolve().name
    with plan.only_writer(folder):
        problems = plan.problem_rows(chosen, sampling.limit)
        template_kwargs = key_values("--template-arg", args.template_arg)
        plan.begin(folder, plan.make_plan(content, chosen, sampling, template_kwargs), problems)
        total = sampling.n * len(problems)
        code = answer(folder, total, ranks, gpus, settings, ["r3", "eval", *argv], console, say)
        return code or score_folder(folder, console, say)


def answer(
    folder: Path,
    total: int,
    ranks: int,
    gpus: list[str],
    settings: dict,
    asked: list[str],
    console: Console,
    say: Callable,
) -> int:
    """Generate what is missing of the `total` answers of a folder; returns the exit code.

    settings: of vLLM. asked: the command, for environment.json.
    """
    command = [sys.executable, "-m", "r3_ext.evaluate.generate", str(folder), "--ranks", str(ranks)]
    command += ["--gpus", ",".join(gpus), "--engine-args", json.dumps(settings)]
    try:
        needed = [private_network.GPUS] if gpus else []
        if obstacle := private_network.obstacle(needed):
            say(f"others may reach vLLM's sockets while it generates: {obstacle}")
        command = private_network.wrap(command, needed)
    except ValueError as error:
        raise EvaluationError(str(error)) from error
    write_text(folder / "environment.json", json.dumps(environment(asked), indent=2) + "\n")
    return generate_missing(folder, command, total, ranks, bool(gpus), console)


def engine_environment(on_gpu: bool) -> dict[str, str]:
    env = dict(os.environ)
    if on_gpu:
        # FlashInfer's sampler is compiled when vLLM starts: without the CUDA toolkit (nvcc) that is its end. Requests
        # with seeds, as all are here, take torch's own anyhow.
        return {"VLLM_USE_FLASHINFER_SAMPLER": "0"} | env
    # As verl's rollouts on the CPU: the model runs in the process of its engine, on one thread.
    return {"OMP_NUM_THREADS": "1"} | env | {"VERL_PLATFORM": "cpu", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def generate_missing(folder: Path, command: list[str], total: int, ranks: int, on_gpu: bool, console: Console) -> int:
    """Run the generating process until every answer is there; returns its exit code."""
    there = len(plan.done(folder))
    if there == total:
        return 0
    log = folder / "engine.log"
    for file in (log, *folder.glob("progress-*.json")):
        file.unlink(missing_ok=True)
    env = engine_environment(on_gpu)
    with RunDisplay(console, "answers", total) as display:
        display.say(f"{there:,} of {total:,} answers are there; starting vLLM, its output goes to {log}")
        progress = Progress(folder, ranks, there, total, display)
        try:
            code = supervise.run(command, env, log, progress.poll, vital=())
        except KeyboardInterrupt:
            display.say(
                f"interrupted: {len(plan.done(folder)):,} of {total:,} answers are kept; the same command goes on"
            )
            return 130
    if code:
        explain(log, code, console)
    return 2 if code == 2 else int(code != 0)


class Progress:
    """Shows how far the ranks are: the bar, and a line at every tenth."""

    def __init__(self, folder: Path, ranks: int, there: int, total: int, display: RunDisplay):
        self.files = [generate.progress_file(folder, rank) for rank in range(ranks)]
        self.there, self.total, self.display = there, total, display
        self.tenth = 10 * there // total
        self.began = None
        display.progress.update(display.task, completed=there)

    def poll(self) -> None:
        told = [json.loads(file.read_text()) for file in self.files if file.exists()]
        fresh = sum(progress["finished"] for progress in told)
        finished = self.there + fresh
        self.display.progress.update(self.display.task, completed=finished)
        # The start of the engine does not count.
        self.began = self.began or (time.monotonic() if fresh else None)
        if 10 * finished // self.total > self.tenth:
            self.tenth = 10 * finished // self.total
            tokens = sum(progress["tokens"] for progress in told)
            left = (time.monotonic() - self.began) * (self.total - finished) / fresh
            self.display.say(f"{finished:,} of {self.total:,} answers, {tokens:,} tokens, about {left:,.0f} s left")


def explain(log: Path, code: int, console: Console) -> None:
    """The sentence of an error that the process explained itself, else the lines of its log that name one."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    sentences = [line for line in lines if line.startswith("error: ")]
    told = sentences[-1:] if code == 2 and sentences else error_lines(log)
    if code != 2:
        told = [*told, f"error: generation ended with exit code {code}, see {log}; what is finished is kept"]
    console.print("\n".join(told), highlight=False, markup=False, soft_wrap=True)


def score_folder(folder: Path, console: Console, say: Callable) -> int:
    total = len(plan.done(folder))
    with RunDisplay(console, "grading", total) as display:
        score.grade_folder(folder, lambda rows: display.progress.update(display.task, completed=rows))
    found = results.write_results(folder)
    console.print()
    console.print(results.tables(found, console.width))
    timeouts = sum(benchmark["grader_timeouts"] for benchmark in found["benchmarks"].values())
    if timeouts:
        say(f"{timeouts:,} answers count as wrong because the grader came to no verdict within {score.TIMEOUT_S:g} s")
    with open(folder / "disagreements.jsonl") as lines:
        differing = sum(json.loads(line)["answers"] for line in lines)
    say(f"grader and strict match differ on {differing:,} of {total:,} answers: {folder / 'disagreements.jsonl'}")
    say(f"results: {folder / 'results.md'}, {folder / 'results.json'}")
    return 0


def score_command(argv: list[str], console: Console, say: Callable) -> int:
    parser = make_parser("r3 eval score", description=score.__doc__)
    parser.add_argument("path", type=Path, help="folder of `r3 eval`, or a file of answers")
    parser.add_argument("--out", type=Path, help="folder for a file's results (default: beside it, named FILE.eval)")
    args = parser.parse_args(argv)
    try:
        is_folder, is_file = args.path.is_dir(), args.path.is_file()
    except OSError as error:  # a name that is too long
        raise EvaluationError(f"{args.path} cannot be read: {error.strerror}") from error
    if is_folder:
        if args.out:
            raise EvaluationError("--out is for a file of answers; a folder keeps its scores in itself")
        folder = args.path
    elif is_file:
        folder = args.out or args.path.with_name(args.path.name + ".eval")
        content = score.read_responses(args.path)
        with plan.only_writer(folder):
            score.write_responses(folder, *content)
    else:
        raise EvaluationError(f"{args.path}: no such file or folder")
    plan.read_plan(folder)
    with plan.only_writer(folder):
        return score_folder(folder, console, say)


def compare_command(argv: list[str], console: Console, say: Callable) -> int:
    parser = make_parser("r3 eval compare", description=compare.__doc__)
    parser.add_argument("a", type=Path, metavar="A", help="scored folder, or file of answers")
    parser.add_argument("b", type=Path, metavar="B", help="scored folder, or file of answers")
    parser.add_argument("--out", type=Path, help="folder for compare.json and compare.md (default: only shown)")
    args = parser.parse_args(argv)
    found = compare.compare(args.a, args.b)
    say(f"A: {args.a}\nB: {args.b}")
    for table in compare.tables(found):
        console.print(table)
    for note in compare.notes(found):
        say(f"note: {note}")
    say(found["interval"])
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        write_text(args.out / "compare.json", json.dumps(found, indent=1) + "\n")
        write_text(args.out / "compare.md", compare.markdown(found))
    return 0


def hard_command(argv: list[str], console: Console, say: Callable) -> int:
    parser = make_parser("r3 eval hard", description=hard.__doc__)
    parser.add_argument("--base", type=Path, required=True, help="scored folder with at least 16 answers per problem")
    parser.add_argument("--runs", type=Path, nargs="*", default=[], help="scored folders of other models")
    parser.add_argument("--out", type=Path, help="folder for hard.json and the subset's files (default: BASE/hard)")
    args = parser.parse_args(argv)
    out = args.out or args.base / "hard"
    found = hard.hard(args.base, args.runs)
    hard.write(found, out)
    files = hard.write_problems(args.base, found, out)
    say(f"subset: {found['subset']['rule']}; shares in per cent, with {found['interval']}")
    for table in hard.tables(found):
        console.print(table)
    for run in found["runs"]:
        if run["missing"]:
            say(f"note: {run['name']} has not answered the subset of {', '.join(run['missing'])}")
    say(f"by limit: {found['by_limit']}\nwritten: {out / 'hard.json'}; more answers to these problems alone:")
    say("  --benchmarks " + ",".join(f"{file.stem}={file}" for file in files))
    return 0


def rank_command(argv: list[str], console: Console, say: Callable) -> int:
    from r3_ext.evaluate import rank  # imports torch and verl, which are slow

    parser = make_parser("r3 eval rank", description=rank.__doc__)
    parser.add_argument("folder", type=Path, help="scored folder")
    parser.add_argument("--limit", type=int, required=True, help="response limit of the training, in tokens")
    parser.add_argument("--top-ratio", type=float, default=0.2, help="as algorithm.r3.ranking.top_ratio (default: 0.2)")
    args = parser.parse_args(argv)
    if args.limit < 1 or not 0 < args.top_ratio <= 1:
        raise EvaluationError(f"--limit must be at least 1, --top-ratio in (0, 1], got {args.limit}, {args.top_ratio}")
    found = rank.forecast(args.folder, args.limit, args.top_ratio)
    value, low, high = found["auc"]
    say(
        f"{found['attempts']:,} answers to {found['problems']:,} problems go on after {args.limit:,} tokens, "
        f"{found['success_share']:.0%} of them to a right end\n"
        f"in {value:.1%} [{low:.1%}, {high:.1%}] of {found['pairs']:,} pairs the later success is ranked higher "
        "(50 % is no information)"
    )
    say(f"written: {rank.write(args.folder, found)}")
    return 0


COMMANDS = {"score": score_command, "compare": compare_command, "hard": hard_command, "rank": rank_command}


def main(argv: list[str]) -> int:
    console = Console()

    say = sayer(console)
    try:
        if argv and argv[0] in COMMANDS:
            return COMMANDS[argv[0]](argv[1:], console, say)
        return evaluate(argv, console, say)
    except KeyboardInterrupt:
        return 130
    except EvaluationError as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
