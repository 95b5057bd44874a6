"""Generates the missing answers of a folder with vLLM: the child process that `r3 eval` starts and supervises.

    python -m r3_ext.evaluate.generate FOLDER --ranks 8 --engine-args '{"dtype": "bfloat16"}'

All answers are handed to the engine at once and written in parts as they come: waiting for the longest answer of one
part before the next begins would leave the GPU idle. With several ranks each is a process with GPUs of its own that
takes every R-th answer. A row is written once it is finished; an interrupt writes the finished ones, too.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from r3_ext.cpu.fork import vllm_distribution
from r3_ext.data import problems as data
from r3_ext.doctor.finding import FAIL
from r3_ext.doctor.model_files import round_trip
from r3_ext.evaluate import EvaluationError, plan
from r3_ext.host.descendants import die_with_parent
from r3_ext.host.files import write_text
from recipe.common.reward import thinking

PART_ROWS = 256
PART_SECONDS = 120.0
"""A part is written when one of the two is reached: a killed process loses no more than that."""


class PartWriter:
    """Writes generations of one rank, and how far it is (`progress-RANK.json`, about once a second)."""

    def __init__(self, folder: Path, rank: int):
        self.folder, self.rank = folder, rank
        self.rows: list[dict] = []
        self.finished = self.tokens = 0
        self.flushed = self.told = time.monotonic()
        numbers = [int(part.stem.split("-")[1]) for part in plan.parts(folder) if part.name.startswith(f"{rank:03d}-")]
        self.number = max(numbers, default=-1) + 1

    def add(self, row: dict) -> None:
        self.rows.append(row)
        self.finished += 1
        self.tokens += row["response_tokens"]

    def tick(self) -> None:
        now = time.monotonic()
        if len(self.rows) >= PART_ROWS or now - self.flushed > PART_SECONDS:
            self.flush()
        if now - self.told > 1:
            self.tell()

    def tell(self) -> None:
        self.told = time.monotonic()
        progress = {"finished": self.finished, "tokens": self.tokens}
        write_text(progress_file(self.folder, self.rank), json.dumps(progress))

    def flush(self) -> None:
        self.flushed = time.monotonic()
        if self.rows:
            file = self.folder / "generations" / f"{self.rank:03d}-{self.number:05d}.parquet"
            plan.write_table(file, self.rows, plan.GENERATION)
            self.rows, self.number = [], self.number + 1


def progress_file(folder: Path, rank: int) -> Path:
    return folder / f"progress-{rank}.json"


def pending(folder: Path, rank: int, ranks: int) -> list[plan.Request]:
    """What this rank has to generate: every R-th of all answers, so that no rank needs to know what others have."""
    sampling = plan.Sampling(**plan.read_plan(folder)["sampling"])
    done = plan.done(folder)
    return [r for r in plan.requests(plan.read_problems(folder), sampling)[rank::ranks] if r.key not in done]


def prompts(folder: Path, model: str, trust_remote_code: bool) -> plan.Prompts:
    """The folder's own, or of each problem what training asks: its messages under the chat template."""
    if (own := plan.read_prompts(folder)) is not None:
        return own
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
    if tokenizer.chat_template is None:
        raise EvaluationError(f"the tokenizer in {model} has no chat template; put a chat_template.jinja there")
    if broken := [finding for finding in round_trip(tokenizer) if finding.level == FAIL]:
        raise EvaluationError(f"the tokenizer in {model}: {broken[0].found}; {broken[0].advice}")
    template = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    template |= plan.read_plan(folder).get("template_kwargs", {})
    return {
        (row["benchmark"], row["index"]): rendered(tokenizer, plan.problem_of(row), template)
        for row in plan.read_problems(folder)
    }


def rendered(tokenizer, problem: data.Problem, template: dict) -> list[int]:
    """Raises EvaluationError where the chat template does not take the messages or its arguments."""
    import jinja2

    try:
        return list(tokenizer.apply_chat_template(problem.messages, **template))
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise EvaluationError(
            f"the chat template does not take problem {problem.index} of {problem.source} ({error}); its roles, "
            "content or --template-arg do not suit the model"
        ) from error


def start_engine(model: str, longest: int, engine_args: dict):
    """A vLLM engine for sequences of up to `longest` tokens."""
    from vllm import EngineArgs, LLMEngine

    length = engine_args.get("max_model_len", longest)
    if not isinstance(length, int) or length < longest:
        raise EvaluationError(
            f"--engine-arg max_model_len must be at least {longest}, the longest prompt plus --max-tokens, got {length}"
        )
    try:
        settings = {"model": model, "disable_log_stats": True, **engine_args, "max_model_len": length}
        return LLMEngine.from_engine_args(EngineArgs(**settings))
    except (TypeError, ValueError) as error:
        traceback.print_exc()
        reason = " ".join(str(error).split())
        raise EvaluationError(f"vLLM does not take these settings ({engine_args}): {reason}") from error


def run_rank(folder: Path, rank: int, ranks: int, engine_args: dict) -> None:
    """Generate and write all pending answers of a rank."""
    wanted = pending(folder, rank, ranks)
    if not wanted:
        return
    if os.environ.get("VERL_PLATFORM") == "cpu":
        vllm_distribution.present()
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    content = plan.read_plan(folder)
    model, sampling = content["model"]["path"], plan.Sampling(**content["sampling"])
    token_ids = prompts(folder, model, bool(engine_args.get("trust_remote_code")))
    engine = start_engine(model, max(map(len, token_ids.values())) + sampling.max_tokens, engine_args)
    for number, request in enumerate(wanted):
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=request.seed,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = {"prompt_token_ids": token_ids[request.benchmark, request.index]}
        engine.add_request(str(number), prompt, params)
    tokenizer = engine.get_tokenizer()
    thinking_end = thinking.dropped_end(tokenizer)
    writer = PartWriter(folder, rank)
    try:
        while engine.has_unfinished_requests():
            for output in engine.step():
                row = to_row(wanted[int(output.request_id)], output)
                tokens = list(output.outputs[0].token_ids)
                if thinking_end in tokens:  # vLLM leaves it out, too
                    row["response"] = thinking.decode(tokenizer, tokens, thinking_end)
                writer.add(row)
            writer.tick()
    finally:
        writer.flush()
        writer.tell()


def to_row(request: plan.Request, output) -> dict:
    [answer] = output.outputs
    if answer.finish_reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended {request} with {answer.finish_reason!r}, expected stop or length")
    return {
        **request._asdict(),
        "prompt_tokens": len(output.prompt_token_ids),
        "response": answer.text,
        "response_tokens": len(answer.token_ids),
        "finish_reason": answer.finish_reason,
        "truncated": answer.finish_reason == "length",
    }


def run_ranks(argv: list[str], ranks: int, gpus: list[str]) -> int:
    """One process per rank with its share of the GPUs; the first that fails ends the others. Returns its exit code."""
    share = len(gpus) // ranks
    children = []
    for rank in range(ranks):
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[rank * share : (rank + 1) * share])} if share else {}
        command = [sys.executable, "-m", "r3_ext.evaluate.generate", *argv, "--rank", str(rank)]
        children.append(subprocess.Popen(command, env={**os.environ, **visible}))
    try:
        while any(child.poll() is None for child in children) and not any(child.poll() for child in children):
            time.sleep(0.2)
    finally:
        codes = [child.poll() for child in children]
        for child in children:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
        for child in children:
            child.wait()
    return next((code for code in codes if code), 0)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m r3_ext.evaluate.generate")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--gpus", default="", help="comma-separated; the ranks share them")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--engine-args", type=json.loads, default={})
    args = parser.parse_args(argv)
    # If the parent is killed, nobody else ends this process, and a new one would generate the same answers.
    die_with_parent(signal.SIGINT)
    if args.rank is None and args.ranks > 1:
        return run_ranks(argv, args.ranks, args.gpus.split(",") if args.gpus else [])
    try:
        run_rank(args.folder, args.rank or 0, args.ranks, args.engine_args)
    except EvaluationError as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
