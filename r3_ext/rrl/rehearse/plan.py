"""What is rehearsed of RRL-style replay: PPO with its critic.

Restarts are left out: one takes the place of a prompt, its rows are no longer, and fewer tokens of them are generated.
"""

from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from r3_ext.rehearse.steps import Data, Plan, of_one_turn


def prepare(config: DictConfig, folder: Path, repeat: int) -> Plan:
    """Write the rows of all steps into the folder."""
    plan = of_one_turn(Data(config, repeat), folder)
    return replace(plan, overrides=("algorithm.rrl.restarts.share=0",))
