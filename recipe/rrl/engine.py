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
"""verl's FSDP engine of a value model, with the attention that its settings name, and a head that follows from a seed.

verl 0.9.1 loads a value model with flash_attention_2, whatever the settings say (verl issue 5210), which a machine
without a GPU does not have, nor do GPUs without flash-attn. Its head begins with what the process's generator happens
to hold, so two runs with equal settings would differ.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import AutoModelForTokenClassification, PretrainedConfig

from verl.utils import model as verl_model
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead


def load(
    local_path: str, torch_dtype: torch.dtype, model_config: PretrainedConfig, trust_remote_code: bool
) -> torch.nn.Module:
    """A model with one output a token, on the weights of a language model."""
    return AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation=model_config._attn_implementation,
        trust_remote_code=trust_remote_code,
    )


@contextmanager
def own_loader() -> Iterator[None]:
    """Within, verl loads value models by `load`: it takes no loader, and looks its own up where it is called."""
    verls, verl_model.load_valuehead_model = verl_model.load_valuehead_model, load
    try:
        yield
    finally:
        verl_model.load_valuehead_model = verls


# With a vendor the key goes before verl's own, which has none.
@EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cuda", vendor="nvidia")
class ValueEngine(FSDPEngineWithValueHead):
    def _build_module(self) -> torch.nn.Module:
        with own_loader(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.engine_config.seed)
            return super()._build_module()
