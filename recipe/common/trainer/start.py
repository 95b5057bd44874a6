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
"""What the training command of every recipe does before and when verl's trainer starts."""

import sys
from collections.abc import Callable, Iterable

import ray
from omegaconf import DictConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from recipe.common.checks import Broken, refuse
from recipe.common.config.machine_rules import name_the_user, of_this_machine
from recipe.common.reward.first_rows import check_first_rows
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


def start(config: DictConfig, rules: Callable[[DictConfig], Iterable[Broken]]) -> None:
    """Train; where the settings break a rule, say so and exit with 2."""
    auto_set_device(config)
    name_the_user()
    try:
        refuse(rules(config))
        check_first_rows(config)
        refuse(of_this_machine(config))
    except ValueError as error:
        # As an exception, the message would end up below hydra's traceback.
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    run_ppo(config, task_runner_class=TaskRunnerHere)
