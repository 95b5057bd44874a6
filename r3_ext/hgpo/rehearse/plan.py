"""What is rehearsed of methods on sessions: in the worst step all sessions are as long as they may be."""

from pathlib import Path

import pyarrow as pa
from omegaconf import DictConfig

from r3_ext.hgpo.rehearse.endless import COMMANDS, SHOWS, WORLD
from r3_ext.rehearse.steps import Data, Plan, batches_of, kinds_of
from recipe.hgpo.prompts import prompt_text

SLACK = 24
"""Tokens that a prompt leaves: each turn puts its name in front. What is too long would be cut at every turn."""


def prepare(config: DictConfig, folder: Path, repeat: int) -> Plan:
    """Write the rows of all steps into the folder."""
    data, rollout = Data(config, repeat), config.actor_rollout_ref.rollout
    column = data.schema.get_field_index("task")
    fields = [*data.schema.field(column).type, pa.field(SHOWS, pa.string())]
    data.schema = data.schema.set(column, pa.field("task", pa.struct(fields)))
    data.write(folder, batches_of(repeat), [endless(data, row) for row in data.last()])
    turns = rollout.multi_turn.max_assistant_turns
    return Plan(kinds_of(repeat), data.problems, {"fresh": data.size * rollout.n * turns})


def endless(data: Data, row: dict) -> dict:
    """The row of a session that never ends, each of its prompts as long as prompts may be."""
    key = data.config.data.prompt_key
    *before, last = row[key]
    empty = {**last, "content": prompt_text(last["content"], (), "", COMMANDS)}
    longest = data.longest({key: [*before, empty]}, data.config.data.max_prompt_length - SLACK)
    shown = longest[key][-1]["content"].removeprefix(empty["content"])
    return {**row, "task": {"world": WORLD, SHOWS: shown}}
