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

Each has its own switch; with all of them off it is verl's GRPO, bit for bit.
"""

import sys

import hydra
import ray
from omegaconf import DictConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from recipe.common.checks import refuse
from recipe.common.config.machine_rules import name_the_user, of_this_machine
from recipe.common.reward.first_rows import check_first_rows
from recipe.r3.config.r3_rules import all_rules
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.utils.device import auto_set_device


class TaskRunnerHere:
    """verl's task runner on the node of this command, where a user looks for history, tracker file and logs.

    A head node that declares no CPUs to Ray takes it too.
    """

    @staticmethod
    def options(**options):
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return TaskRunnerV1.options(num_cpus=0, scheduling_strategy=here, **options)

    @classmethod
    def remote(cls):
        return cls.options().remote()


@hydra.main(config_path="config", config_name="r3_trainer", version_base=None)
def main(config: DictConfig) -> None:
    auto_set_device(config)
    name_the_user()
    try:
        refuse(all_rules(config))
        check_first_rows(config)
        refuse(of_this_machine(config))
    except ValueError as error:
        # As an exception, the message would end up below hydra's traceback.
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    run_ppo(config, task_runner_class=TaskRunnerHere)


if __name__ == "__main__":
    main()
