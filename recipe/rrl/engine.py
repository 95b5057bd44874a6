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

from verl.workers.config import HFModelConfig
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead

HEAD = "ForTokenClassification"
ONE_VALUE = {"num_labels": 1, "classifier_dropout": 0.0, "hidden_dropout": "0", "summary_dropout_prob": 0.0}
"""As verl sets up a value model: one output a token, no dropout."""
HOOKS = {
    "verl.workers.engine.fsdp.transformer_impl.FSDPEngineWithValueHead": {"_build_module": ()},
    "verl.utils.model": {"get_hf_auto_model_class": ()},
}
"""What of verl's the engine extends, and relies on (recipe/common/verl_hooks.py)."""


@contextmanager
def called_token_classifier(model: HFModelConfig) -> Iterator[None]:
    """Within, `model` says that it is what verl makes a value model of, by the name of a class that transformers has.
    verl then loads it as it loads a language model: with the attention of the settings."""
    kind, names = model.model_type, model.hf_config.architectures
    model.model_type = "language_model"
    model.hf_config.architectures = [names[0].removesuffix("ForCausalLM") + HEAD]
    try:
        yield
    finally:
        model.model_type, model.hf_config.architectures = kind, names


# With a vendor the key goes before verl's own, which has none.
@EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cuda", vendor="nvidia")
class ValueEngine(FSDPEngineWithValueHead):
    def _build_module(self) -> torch.nn.Module:
        self.model_config.hf_config.update(ONE_VALUE)
        with called_token_classifier(self.model_config), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.engine_config.seed)
            module = super()._build_module()
        if not type(module).__name__.endswith(HEAD):
            raise ValueError(
                f"critic.model.path: {self.model_config.local_path} gave a {type(module).__name__}, which has no value "
                "head; name a language model that transformers has with a head for tokens"
            )
        return module
