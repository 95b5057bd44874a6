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
"""Entry point: `python -m recipe.r3.main_r3 data.train_files=... actor_rollout_ref.model.path=...`

Differs from verl's GRPO (`python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo`) in four points:

1. dead groups get stored trajectories of the opposite outcome            algorithm.r3.replay
2. hard queries are asked again with a past wrong attempt in the prompt   algorithm.r3.reflection
3. truncated rows of all-wrong groups earn graded rewards                 algorithm.r3.ranking
4. a correct answer earns a bonus for being short                         reward.reward_kwargs.length_bonus

Each has its own switch; with all of them off it is verl's GRPO, bit for bit, but for points 6 and 7 of
the list in README.md.
"""

import hydra
from omegaconf import DictConfig

from recipe.common.trainer.start import start
from recipe.r3.config.r3_rules import all_rules


@hydra.main(config_path="config", config_name="r3_trainer", version_base=None)
def main(config: DictConfig) -> None:
    start(config, all_rules)


if __name__ == "__main__":
    main()
