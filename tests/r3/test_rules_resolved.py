"""The trainer asks the rules again in its Ray process, where verl has resolved all settings."""

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from recipe.r3.config import r3_config
from recipe.r3.config.r3_rules import validate_r3_config


def test_settings_that_verl_has_resolved_break_no_rule():
    with initialize_config_dir(str(Path(r3_config.__file__).parent), version_base=None):
        config = compose("r3_trainer")
    OmegaConf.resolve(config)
    validate_r3_config(config)
