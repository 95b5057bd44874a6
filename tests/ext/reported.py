"""Runs to report on, for the tests of `r3 report`."""

import json

import numpy as np
import yaml

HOSTILE = "<img src=x onerror=alert(1)>&\"'$x_{1}$\x00\x1b[31m\ud800"


def training_row(step, **extra):
    """A row of R^3: 8 groups, 3 mixed, 4 of 5 dead ones rescued, one of these by ranking alone and one by both."""
    groups = {"total": 8, "mixed": 3, "all_correct": 2, "all_wrong": 3}
    groups |= {"rescued_by_replay": 3, "ranked": 2, "still_dead": 1, "still_wrong": 0}
    return {
        "step": step,
        "training/global_step": step,
        "generated/tokens": 1000,
        "fresh/tokens": 900,
        "reflection/tokens": 100,
        "replay/tokens": 50,
        "fresh/score/mean": 1 + 0.01 * step,
        "fresh/acc/mean": 0.5,
        "fresh/truncated/mean": 0.1,
        "response_length/mean": 40.0,
        "actor/entropy": 1 / step,
        "timing_s/gen": 2.0,
        "timing_s/update_actor": 1.0,
        "timing_s/step": 4.0,
        "reflection/prompts": 2,
        "reflection/solved": 1,
        **{f"groups/{name}": count for name, count in groups.items()},
        **extra,
    }


def write_run(folder, rows, config=None, **files):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def noisy_rows(seed, steps):
    """Rows of many metrics with noise, of which the drawn lines must keep the extremes."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(1, steps + 1):
        correct, wrong, replayed, left = rng.integers([0, 0, 0, 0], [40, 40, 20, 10])
        dead = int(correct + wrong + replayed + left)
        row = training_row(step, **{"groups/all_correct": dead, "groups/all_wrong": 0, "groups/total": 128})
        row |= {
            "groups/mixed": 128 - dead,
            "groups/rescued_by_replay": int(replayed),
            "groups/still_dead": int(left),
            "groups/still_wrong": 0,
        }
        names = ("actor/entropy", "fresh/score/mean", "replay/age/mean", "replay/ratio/p99", "replay/ratio/p01")
        row |= {name: float(value) for name, value in zip(names, rng.lognormal(size=len(names)), strict=True)}
        row |= {f"other/{number}": float(rng.random()) for number in range(100)}
        if step % 5 == 0:
            row |= {f"val/{name}/pass@1": float(rng.random()) for name in ("aime24", "math500")}
        rows.append(row)
    return rows


def config_of(seed, folder, k=1):
    trainer = {"default_local_dir": str(folder), "v1": {"trainer_mode": "r3"}}
    return {"data": {"seed": seed}, "trainer": trainer, "algorithm": {"r3": {"replay": {"k": k, "enable": True}}}}
