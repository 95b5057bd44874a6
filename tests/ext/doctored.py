"""Rows, files and findings, for the tests of `r3 doctor`."""

import json

from r3_ext.data import problems as data
from r3_ext.data.write import to_row
from r3_ext.doctor.finding import Finding

MODEL_CONFIG = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
}


def rows(number: int) -> list[dict]:
    problems = [data.Problem(f"What is {index} + 1?", str(index + 1), "test", index) for index in range(number)]
    return [to_row(problem, "test", "train") for problem in problems]


def as_json(path, content: list[dict]) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def levels(findings: list[Finding]) -> list[str]:
    return [finding.level for finding in findings]


def only(findings: list[Finding], level: str) -> Finding:
    """The one finding of that level."""
    (finding,) = [finding for finding in findings if finding.level == level]
    return finding
