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
"""Train with HGPO: `python -m recipe.hgpo.main_hgpo` takes verl's hydra overrides.

Differs from verl's GRPO on sessions (`python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo`) in two points:

1. a turn is compared with turns of its task that share its last states   algorithm.hgpo
2. the number of optimizer steps does not depend on the number of turns   algorithm.hgpo.rows_per_step

With step_weight 0 and episode_weight 1 the advantages are verl's, except that tasks whose sessions do not differ get 0.
"""

import hydra
from omegaconf import DictConfig

from recipe.common.trainer.start import start
from recipe.hgpo.config.hgpo_rules import all_rules


@hydra.main(config_path="config", config_name="hgpo_trainer", version_base=None)
def main(config: DictConfig) -> None:
    start(config, all_rules)


if __name__ == "__main__":
    main()
