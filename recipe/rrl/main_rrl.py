# Copyright 2026 Individual Contributor: the R^3 recipe authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Train RRL-style: `python -m recipe.rrl.main_rrl` takes verl's hydra overrides.

Differs from verl's PPO (`python -m verl.trainer.main_ppo algorithm.adv_estimator=gae`) in three points:

1. states that the policy reached, and may be able to finish later, are kept       algorithm.rrl.states
2. a share of each step's prompts begins at such a state                           algorithm.rrl.restarts
3. the critic may have a lambda of its own                                         algorithm.rrl.lam_value

With algorithm.rrl.restarts.share=0 it is verl's PPO.
"""

import hydra
from omegaconf import DictConfig

from recipe.common.trainer.start import start
from recipe.rrl.config.rrl_rules import all_rules


@hydra.main(config_path="config", config_name="rrl_trainer", version_base=None)
def main(config: DictConfig) -> None:
    start(config, all_rules)


if __name__ == "__main__":
    main()
