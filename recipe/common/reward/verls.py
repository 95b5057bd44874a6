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
"""Which data sources verl has a reward for. verl's function itself is asked, with an answer that is none: it says
NotImplementedError, or looks at it."""

import contextlib
import io
import json
import sys
from functools import cache
from multiprocessing.connection import Connection

from recipe.common.process_pool import START_TIMEOUT_S, Worker, questions


@cache
def verls_reward(data_source: str) -> str | None:
    """Whether verl has a reward for a data source. None: it has none; else what keeps it from loading, or an empty
    text."""
    if "ray" in sys.modules:
        return _ask(data_source)
    # verl imports Ray, which a process that is going to fork must not have.
    answer = _worker().ask(data_source, START_TIMEOUT_S)
    if answer is None:
        raise RuntimeError(f"data_source={data_source}: verl did not say whether it has a reward for it")
    return json.loads(answer)


@cache
def _worker() -> Worker:
    return Worker(__name__)


def _ask(data_source: str) -> str | None:
    from verl.utils.reward_score import default_compute_score

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            default_compute_score(data_source, None, None)
    except NotImplementedError:
        return None
    except ImportError as error:
        return str(error)
    except (TypeError, AttributeError):
        pass
    return ""


def serve(pipe: int, parent_pid: int) -> None:
    """Answers a data source with what `verls_reward` says of it, as JSON."""
    import verl.utils.reward_score  # noqa: F401  before memory is limited

    for data_source, reply in questions(Connection(pipe), parent_pid):
        reply(json.dumps(_ask(data_source)).encode())
