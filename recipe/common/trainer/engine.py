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
"""verl's FSDP2 engine, with which fused log-probs work for models whose two embeddings are not one matrix, and an
attention whose gradients are numbers.

verl 0.9.1 gives `lm_head` a unit of its own then, which gathers its weight when it is called. The fused forward reads
the weight and never calls it: it meets a shard and raises "got mixed torch.Tensor and DTensor" (verl issue 7520). In
the root's unit, where verl leaves tied embeddings, it is gathered while the model runs.

torch's attention (sdpa) is cuDNN's on H100, H200 and B200 unless told otherwise. Under a mask, which packed rows have,
its gradients are NaN on H100 and H200 where the length is 64 beyond a multiple of 128 and a query fits no key (pytorch
issue 196678; the heads of Qwen2.5 meet it, trl issue 7181), and its results are silently wrong on B200 (pytorch issue
193893). vLLM turns it off where it is imported, so that verl's workers that generate as well are spared; here it is off
in every process of a recipe. Padding to whole multiples (verl's `pad_to_length`) mends the former only.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PretrainedConfig

from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead

torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def called_tied(config: PretrainedConfig) -> Iterator[None]:
    """Within, `config` says that the embeddings are tied, which is all that verl asks before it makes the units."""
    said = config.tie_word_embeddings
    config.tie_word_embeddings = True
    try:
        yield
    finally:
        config.tie_word_embeddings = said


# With a vendor the key goes before verl's own, which has none.
@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cuda", vendor="nvidia")
class R3FSDP2Engine(FSDPEngineWithLMHead):
    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        if not self.model_config.use_fused_kernels:
            return super()._build_fsdp_module(module)
        with called_tied(module.config):
            return super()._build_fsdp_module(module)
