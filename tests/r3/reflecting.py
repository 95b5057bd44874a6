"""Prompts and planners, for the tests of reflection."""

from recipe.r3.config.r3_config import ReflectionConfig
from recipe.r3.reflection import ReflectionPlanner

TEMPLATE = "Q: {question}\nA: {attempt}\nTry again."


def encode(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def make_planner(tokenizer, history, batch_size: int = 8, budget: int = 1000, seed: int = 0, **config):
    return ReflectionPlanner(
        ReflectionConfig(**{"template": TEMPLATE, "max_fraction": 1.0, **config}),
        history,
        tokenizer,
        template_kwargs={},
        default_agent="single_turn_agent",
        batch_size=batch_size,
        budget=budget,
        seed=seed,
    )
