"""Sessions that are written down as they are played, and played back where they are written down.

Two runs compare bit for bit only on the same rollouts. verl's own recordings (`skip.rollout_tq`) hold all rows, but
give back one row a session: the first n rows of a group become n sessions. And a batch has its rows in the order in
which sessions ended; here in that of the data.
"""

import os
import pickle
from pathlib import Path

from recipe.common import queue
from recipe.common.rows import RowKey
from recipe.hgpo.agent_loop import AGENT_NAME, SessionAgentLoop
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

FOLDER = "R3_SESSIONS_FOLDER"
"""Environment variable: where the sessions lie."""


@register(AGENT_NAME)
class RecordedSessions(SessionAgentLoop):
    async def run(self, sampling_params: dict, **kwargs) -> list[AgentLoopOutput]:
        name = f"{kwargs['global_steps']}_{kwargs['task']['sha256']}_{kwargs['session_id']}"
        file = Path(os.environ[FOLDER]) / f"{name}.pickle"
        if not file.exists():
            outputs = await super().run(sampling_params, **kwargs)
            file.write_bytes(pickle.dumps({"uid": kwargs["uid"], "outputs": outputs}))
        return pickle.loads(file.read_bytes())["outputs"]


class InOrder(ReplayBuffer):
    def _materialize_batch(self, *args, **kwargs) -> queue.KVBatchMeta:
        batch = super()._materialize_batch(*args, **kwargs)
        names = [RowKey.parse(key) for key in batch.keys]
        prompts = [int(row["index"]) for row in queue.read(batch, ["index"])]
        batch.reorder(sorted(range(len(batch)), key=lambda at: (prompts[at], names[at].session, names[at].index)))
        return batch


def sessions(folder: Path) -> list[dict]:
    """What was written down: the training step, the `uid` of the group, the session and its rows."""
    found = []
    for file in sorted(folder.glob("*.pickle")):
        step, _, session = file.stem.split("_")
        found.append({"step": int(step), "session": int(session), **pickle.loads(file.read_bytes())})
    return found
