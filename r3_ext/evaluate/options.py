"""Options of `r3 eval`, and the settings of vLLM that follow from them."""

import argparse
import json
import os
from pathlib import Path

from omegaconf import OmegaConf

from r3_ext.evaluate import EvaluationError, benchmarks
from r3_ext.settings import compose

DATA_VARIABLE = "R3_BENCHMARKS"
EMBEDDED = compose.OWN_CONFIG / "profile" / f"{compose.EMBEDDED}.yaml"
ENGINE_KEYS = ("dtype", "enforce_eager", "max_num_seqs", "max_num_batched_tokens")
"""Settings of the embedded profile's rollouts that hold for an evaluation as well."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise EvaluationError(f"{message}; `{self.prog} --help` tells more")


def make_parser(prog: str, **extra) -> Parser:
    return Parser(prog=prog, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **extra)


def parse_generation(argv: list[str], description: str | None) -> argparse.Namespace:
    parser = make_parser("r3 eval", description=description)
    parser.add_argument("--model", required=True, help="folder with config.json, tokenizer and weights, or a hub id")
    text = f"comma-separated: {', '.join(benchmarks.KNOWN)}, or NAME=FILE"
    parser.add_argument("--benchmarks", required=True, help=text)
    parser.add_argument("--n", type=int, default=16, help="answers per problem (default: 16)")
    parser.add_argument("--max-tokens", type=int, default=32768, help="longest response (default: 32768)")
    parser.add_argument("--temperature", type=float, default=0.6, help="default: 0.6, the model card's")
    parser.add_argument("--top-p", type=float, default=0.95, help="default: 0.95, the model card's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="first problems of each benchmark only")
    default = Path(os.environ.get(DATA_VARIABLE, "data/benchmarks"))
    text = f"folder with the benchmark files (default: ${DATA_VARIABLE}, else data/benchmarks)"
    parser.add_argument("--data", type=Path, default=default, help=text)
    parser.add_argument("--out", type=Path, help="folder for the results (default: outputs/eval/MODEL)")
    parser.add_argument("--data-parallel", default="auto", help="engines, each with GPUs of its own (default: auto)")
    text = "setting of vLLM's EngineArgs, e.g. tensor_parallel_size=2; may be repeated"
    parser.add_argument("--engine-arg", action="append", default=[], metavar="KEY=VALUE", help=text)
    text = "argument of the chat template, as data.apply_chat_template_kwargs has it; may be repeated"
    parser.add_argument("--template-arg", action="append", default=[], metavar="KEY=VALUE", help=text)
    return parser.parse_args(argv)


def engine_args(given: list[str], on_gpu: bool) -> dict:
    """Settings of vLLM: the given ones; without a GPU on top of those of the embedded profile."""
    settings = {}
    if not on_gpu:
        rollout = OmegaConf.load(EMBEDDED).actor_rollout_ref.rollout
        settings = {key: rollout[key] for key in ENGINE_KEYS} | OmegaConf.to_container(rollout.engine_kwargs.vllm)
        del settings["worker_cls"]  # for weights that change
        # vLLM rewinds the generator of a request whose prompt was read in part only, which CPU generators do not know.
        settings["enable_chunked_prefill"] = False
    return settings | key_values("--engine-arg", given)


def key_values(option: str, given: list[str]) -> dict:
    """`KEY=VALUE` texts as a dict; a value is JSON, True or False, or a plain word."""
    settings = {}
    for setting in given:
        key, found, value = setting.partition("=")
        if not found or not key.isidentifier():
            raise EvaluationError(f"{option} must be KEY=VALUE, got {setting!r}")
        try:
            settings[key] = json.loads(value.lower() if value in ("True", "False") else value)
        except ValueError:  # a plain word
            settings[key] = value
    return settings
