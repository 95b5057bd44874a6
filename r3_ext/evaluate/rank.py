"""Does the ranking reward foresee success? Attempts cut off at a limit, ranked, against what became of them.

An answer longer than --limit tokens is one that training at this limit would have cut off; the evaluation holds how it
went on. The first tokens are read again by the model, their entropies give the ranking reward (SERR) among the cut-off
attempts at one problem, and `auc` is the share of pairs of a later success and a later failure at one problem in
which the success was ranked higher, ties counting half: 0.5 is no information, 1 a perfect forecast. Its interval
resamples problems.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from r3_ext.evaluate import EvaluationError, generate, plan
from r3_ext.evaluate.score import SCORE
from r3_ext.host.files import write_text
from recipe.common.validation import interval
from recipe.r3.core_algos import structural_entropy_ranking_reward

CHUNK = 512
"""Tokens whose logits are in memory at a time."""


def auc_pairs(reward_N: np.ndarray, correct_N: np.ndarray) -> tuple[float, int]:
    """Pairs of a success and a failure in which the success has the higher reward (a tie is half), and all pairs.

    Rewards [0.5, 0.2, 0.2] of a success, a success and a failure: 1.5 of 2.
    """
    right, wrong = reward_N[correct_N], reward_N[~correct_N]
    ahead = np.sign(right[:, None] - wrong[None, :])
    return float(((ahead + 1) / 2).sum()), ahead.size


def cut_off(folder: Path, limit: int) -> dict[tuple[str, int], list[dict]]:
    """Answers of more than `limit` tokens with their verdicts, by problem; those with fewer than two are left out."""
    scores = plan.read_table(folder / "scores.parquet", SCORE).to_pylist()
    verdicts = {(row["benchmark"], row["index"], row["sample"]): row["correct"] for row in scores}
    groups: dict[tuple[str, int], list[dict]] = {}
    columns = ["benchmark", "index", "sample", "response", "response_tokens"]
    for part in plan.parts(folder):
        with plan.readable(part):
            rows = pq.read_table(part, columns=columns).to_pylist()
        for row in rows:
            if row["response_tokens"] is not None and row["response_tokens"] > limit:
                key = row["benchmark"], row["index"], row["sample"]
                if key not in verdicts:
                    raise EvaluationError(f"{part}: answer {key} has no score; run `r3 eval score {folder}` again")
                correct = verdicts[key]
                groups.setdefault((row["benchmark"], row["index"]), []).append({**row, "correct": correct})
    return {key: sorted(rows, key=lambda row: row["sample"]) for key, rows in groups.items() if len(rows) > 1}


@torch.no_grad()
def entropies(model, prompt_ids: list[int], response_ids: list[int]) -> torch.Tensor:
    """Entropy (T,), in nats, of the model's next-token distribution at each response token, at temperature 1."""
    ids = torch.tensor([prompt_ids + response_ids], device=model.device)
    hidden_TH = model.base_model(input_ids=ids).last_hidden_state[0, len(prompt_ids) - 1 : -1]
    head = model.get_output_embeddings()
    parts = [torch.distributions.Categorical(logits=head(part).float()).entropy() for part in hidden_TH.split(CHUNK)]
    return torch.cat(parts).cpu()


def forecast(folder: Path, limit: int, top_ratio: float) -> dict:
    """Content of rank_LIMIT.json, for the model that gave the answers."""
    content = plan.read_plan(folder)
    if not content["sampling"]:
        raise EvaluationError(f"{folder} holds answers of somebody else; the model that gave them is needed")
    groups = ranked_groups(folder, content["model"]["path"], limit, top_ratio)
    return {"limit": limit, "top_ratio": top_ratio, "model": content["model"], **foresight(groups)}


def with_both_outcomes(folder: Path, limit: int) -> dict[tuple[str, int], list[dict]]:
    """The cut-off attempts of the problems that have right and wrong ones among them."""
    return {key: rows for key, rows in cut_off(folder, limit).items() if len({row["correct"] for row in rows}) == 2}


def ranked_groups(folder: Path, model_path: str, limit: int, top_ratio: float) -> list[dict]:
    """Rewards and verdicts of the cut-off attempts of every problem with both outcomes among them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # slow to import

    groups = with_both_outcomes(folder, limit)
    if not groups:
        raise EvaluationError(
            f"{folder}: no problem has a right and a wrong answer of more than {limit} tokens; take another --limit"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    prompt_ids = generate.prompts(folder, model_path, trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype="auto").to(device).eval()
    found = []
    for key, rows in groups.items():
        values = []
        for row in rows:
            response = tokenizer(row["response"], add_special_tokens=False)["input_ids"][:limit]
            values.append(entropies(model, prompt_ids[key], response))
        entropy_NT = torch.nn.utils.rnn.pad_sequence(values, batch_first=True)
        mask_NT = torch.nn.utils.rnn.pad_sequence([torch.ones(len(v)) for v in values], batch_first=True)
        # The scale of the reward does not matter here, only its order.
        reward_N = structural_entropy_ranking_reward(entropy_NT, mask_NT, top_ratio, max_reward=1.0).numpy()
        found.append({"benchmark": key[0], "reward": reward_N, "correct": np.array([r["correct"] for r in rows])})
    return found


def foresight(groups: list[dict], seed: int = 0) -> dict:
    """auc as [value, low, high], with the numbers that it rests on."""
    wins, pairs = (
        np.array(c, dtype=float) for c in zip(*[auc_pairs(g["reward"], g["correct"]) for g in groups], strict=True)
    )
    low, high = interval(wins, seed, counts=pairs)
    return {
        "auc": [float(wins.sum() / pairs.sum()), float(low), float(high)],
        "problems": len(groups),
        "attempts": int(sum(len(group["reward"]) for group in groups)),
        "pairs": int(pairs.sum()),
        "success_share": float(np.concatenate([group["correct"] for group in groups]).mean()),
    }


def write(folder: Path, found: dict) -> Path:
    file = folder / f"rank_{found['limit']}.json"
    write_text(file, json.dumps(found, indent=1) + "\n")
    return file
