"""What is rehearsed of RRL-style replay: PPO with its critic, both of which train in every step.

Restarts are left out: one takes the place of a prompt, its rows are no longer, and fewer tokens of them are generated.
With them go the state buffer and its file, and values of states taken anew.
"""

from dataclasses import replace
from pathlib import Path

from datasets import Dataset
from omegaconf import DictConfig

from r3_ext.rehearse.steps import Data, Plan, of_one_turn
from recipe.rrl.config.rrl_rules import validate_rrl_config
from recipe.rrl.data_checks import check_data


def prepare(config: DictConfig, folder: Path, repeat: int) -> Plan:
    """Write the rows of all steps into the folder."""
    data, rrl = Data(config, repeat), validate_rrl_config(config)
    if rrl.is_on:
        check_data(Dataset(data.table), rrl.states)
    overrides = ("algorithm.rrl.restarts.share=0", "trainer.critic_warmup=0")
    return replace(of_one_turn(data, folder), overrides=overrides)
