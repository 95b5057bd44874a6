"""A reward function of which nothing is to be believed but its numbers: it fails on one wrong answer in four."""

import hashlib
import os
import time


def compute_score(data_source, solution_str, ground_truth, extra_info):
    if f"\\boxed{{{ground_truth}}}" in solution_str:
        return {"score": 1.0, "why": "right"}
    fault = hashlib.md5(solution_str.encode()).digest()[0] % 32
    if fault == 0:
        raise KeyError(solution_str)
    if fault == 1:
        time.sleep(3600)
    if fault == 2:
        os._exit(0)
    return {3: float("nan"), 4: "1.0", 5: [1.0], 6: {"points": 1.0}, 7: 1e39}.get(fault, 0.0)
