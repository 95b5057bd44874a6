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
"""The methods of verl that this repository extends, with the parameters that they have in the pinned version.

Most are no public interface, and a method that verl renames would never be called again: an R^3 that no longer replays
trains on as GRPO. So every trainer compares this table with the installed verl before it builds anything.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module, metadata

Hooks = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Parameters, `self` left out, of each method of each class of verl's, the latter by its import path. Of a module's
function the first one is left out as well."""

V1 = "verl.trainer.ppo.v1"
TRAINER_HOOKS: Hooks = {
    f"{V1}.trainer_base.PPOTrainer": {
        "_build_replay_buffer": (),
        "_init_resource_pool_mgr": (),
        "_init_dataloader": (),
        "_load_checkpoint": (),
        "_save_checkpoint": (),
        "_next_train_batch": ("num_prompts",),
        "_submit_batch_to_rollout": ("batch",),
        "_get_required_batch_multiple": ("dp_size",),
        "_balance_batch": ("batch", "metrics", "logging_prefix", "keep_minibatch"),
        "_compute_old_log_prob": ("batch", "metrics"),
        "_compute_advantage": ("batch", "metrics"),
        "_update_actor": ("batch", "metrics"),
        "_update_critic": ("batch", "metrics"),
        "_compute_metrics": ("batch", "metrics", "timing_raw", "global_steps", "epoch"),
        "_val_metrics_update": (
            *("data_sources", "sample_uids", "reward_extra_infos_dict", "sample_turns", "expected_acc_counts"),
        ),
        "_rollout_server_managers": (),
        "prepare_step": (),
        "step": ("metrics", "timing_raw"),
        "on_init_end": (),
        "on_train_begin": (),
        "on_validate_begin": (),
        "on_step_begin": (),
        "on_step_end": (),
        "fit": ("agent_loop_manager",),
    },
    f"{V1}.replay_buffer.ReplayBuffer": {
        "sample": ("global_steps", "partition_id", "batch_size"),
        "_wait_for_next_poll": ("partition_id", "last_debug_time"),
        "_clear_groups": ("partition_id", "uids"),
        "_sampleable_terminal_keys": ("partition_id", "eviction_reasons"),
        "_select_prompt_uids": ("partition_id", "sampleable_keys", "batch_size"),
        "_materialize_batch": ("partition_id", "selected_prompt_uids", "partition_snapshot"),
    },
    "verl.workers.engine_workers.TrainingWorker": {
        "train_mini_batch": ("data",),
        "train_batch": ("data",),
        "load_checkpoint": ("local_path", "hdfs_path", "del_local_after_load"),
    },
}
"""What recipe/common extends, and of the trainer and its data collector what R^3 does besides."""


def hook_faults(hooks: Hooks) -> list[str]:
    """A sentence for each method that the installed verl lacks, or has with other parameters."""
    faults = []
    for path, methods in hooks.items():
        module, _, name = path.rpartition(".")
        try:
            owner = getattr(import_module(module), name)
        except (ImportError, AttributeError):
            faults.append(f"{path} is gone")
            continue
        each = (_fault(getattr(owner, method, None), f"{path}.{method}", wanted) for method, wanted in methods.items())
        faults += filter(None, each)
    return faults


def _fault(found: Callable | None, where: str, wanted: tuple[str, ...]) -> str | None:
    if found is None:
        return f"{where} is gone"
    parameters = tuple(inspect.signature(found).parameters)[1:]
    return None if parameters == wanted else f"{where} takes ({', '.join(parameters)}), not ({', '.join(wanted)})"


def check_hooks(hooks: Hooks) -> None:
    """Raises RuntimeError, with every fault, where the installed verl is not the one that this was written for."""
    if faults := hook_faults(hooks):
        raise RuntimeError(
            f"verl {metadata.version('verl')} is not the version that this recipe extends: {'; '.join(faults)}. "
            "Install the one that REQUIRED_VERL.txt names, or adapt the hooks (recipe/common/verl_hooks.py)"
        )
