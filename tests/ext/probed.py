"""Answers, figures and reports, for the tests of `r3 probe`."""

import numpy as np
from omegaconf import OmegaConf

from r3_ext.r3.probe import quantities, report, sooner
from r3_ext.r3.probe.quantities import Plain, Reflected
from recipe.r3.config.r3_config import R3Config, load_r3_config


def plain_of(correct: list[list[int]], cut: list[list[int]] | None = None, tokens: int | list = 10) -> Plain:
    correct_PA = np.array(correct, bool)
    cut_PA = np.zeros_like(correct_PA) if cut is None else np.array(cut, bool)
    return Plain(correct_PA, cut_PA, np.broadcast_to(tokens, correct_PA.shape).astype(float), correct_PA.astype(float))


def reflected_of(asked: list[int], right: list[int], tokens: list[float]) -> Reflected:
    asked_P = np.array(asked, bool)
    right_P = np.array(right, float)
    return Reflected(asked_P, asked_P, right_P, right_P, np.array(tokens, float))


def configured(**settings) -> R3Config:
    """Every hard problem is asked in an epoch, unless told otherwise."""
    parts = {"reflection": {"max_fraction": 1.0}} | settings
    return load_r3_config(OmegaConf.create({"algorithm": {"r3": parts}}))


def measure(plain: Plain, reflected: Reflected, seed: int = 0, batch: int = 16, **settings) -> dict:
    return quantities.measure(plain, reflected, seed, configured(**settings), batch)


def report_of(plain: Plain, reflected: Reflected, world: str | None = "seed=1", when: str = "next_visit") -> dict:
    """Content of probe.json."""
    figures = measure(plain, reflected) | sooner.measure(plain, reflected, 0, configured(), 16)
    about = {"model": {"path": "m"}, "profile": "embedded", "world": world, "overrides": ["a.b='c d'"]}
    about |= {"problems": len(plain.correct_PA), "group": plain.n, "limit": 64, "data": "d e"}
    about |= {"val_data": None, "when": when}
    about |= {"reward": {"by": "the grader", "no_score": 0}}
    parts = {"plain": {"generated": 1000, "prompts": 300}}
    return report.content(about, plain, reflected, figures, None, report.cost(parts, 250.0, 60.0))


def random_answers(seed: int, problems: int = 12, n: int = 4) -> tuple[Plain, Reflected]:
    rng = np.random.default_rng(seed)
    correct_PA = rng.random((problems, 2 * n)) < rng.random((problems, 1)) ** 2
    cut_PA = ~correct_PA & (rng.random((problems, 2 * n)) < 0.5)
    plain = plain_of(correct_PA, cut_PA, rng.integers(5, 60, (problems, 2 * n)))
    hard_P = quantities.is_hard(correct_PA[:, :n], 0.25)
    right_P = np.where(hard_P, rng.integers(0, n + 1, problems), 0).astype(float)
    return plain, Reflected(hard_P, hard_P, right_P, right_P, np.where(hard_P, rng.integers(20, 200, problems), 0.0))
