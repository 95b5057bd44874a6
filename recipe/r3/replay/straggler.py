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
"""A deadline for the rollouts of a step, so that one straggler does not hold up the batch.

The collector aborts what still runs at the deadline, verl's servers return it unfinished, and this client marks it:
only then can an aborted response be told from one that the model ended itself.
"""

from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

ABORTED = "r3_aborted"


class AbortMarkingClient(LLMServerClient):
    """verl's client; `extra_fields` of a response says whether it was aborted."""

    async def generate(self, request_id, **kwargs) -> TokenOutput:
        output = await super().generate(request_id, **kwargs)
        output.extra_fields[ABORTED] = output.stop_reason == "aborted"
        return output
