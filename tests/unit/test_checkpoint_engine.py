"""What separate_async needs without a GPU: weights reach every rollout worker or an error ends the call, the old
policy of a step is a copy, and the trainer starts without hybrid replicas."""

import subprocess
import textwrap

import pytest

from r3_ext import supervise
from r3_ext.cpu import forkserver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def say(tmp_path_factory):
    """say(code): the lines that a program of the CPU platform prints; its Ray workers are forks as well."""
    env = {**forkserver.environment(), "VERL_PLATFORM": "cpu", "RAY_DEDUP_LOGS": "0"}
    with supervise.scratch_folder() as folder, forkserver.serving(folder) as python:

        def run(code: str) -> list[str]:
            script = tmp_path_factory.mktemp("script") / "script.py"
            script.write_text(textwrap.dedent(code))
            command = [str(python), str(script)]
            done = subprocess.run(
                command,
                env={**env, "RAY_TMPDIR": str(folder), "PYTHON": str(python)},
                capture_output=True,
                text=True,
                timeout=180,
            )
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
            return [line.removeprefix("said: ") for line in done.stdout.splitlines() if line.startswith("said: ")]

        yield run


ACTORS = """
import os, ray, time, torch

class Worker:
    '''The two methods of verl's workers that the engine is called through.'''
    def __init__(self, **settings):
        from r3_ext.cpu import checkpoint_engine, weight_sync
        from verl.checkpoint_engine import CheckpointEngineRegistry
        weight_sync.DEADLINE_S = 2.0
        self.engine = CheckpointEngineRegistry.new("ray", bucket_size=1, **settings)
    def execute_checkpoint_engine(self, method, *args, **kwargs):
        return getattr(self.engine, method)(*args, **kwargs)
    def topology(self, *args):
        return type(self.engine).build_topology(*args)
    async def send(self, factor):
        table = torch.arange(12.0).reshape(3, 4) * factor
        await self.engine.send_weights((name, part) for name, part in [("a", table[1]), ("b", table.bfloat16())])
    async def receive(self):
        return [(name, weight.tolist(), str(weight.dtype)) async for name, weight in self.engine.receive_weights()]

def workers():
    cls = ray.remote(Worker)
    return [cls.remote(is_master=rank == 0) for rank in range(2)], [cls.remote() for _ in range(2)]

def connect(senders, receivers):
    '''verl's CheckpointEngineManager.build_process_group.'''
    every = senders + receivers
    prepared = ray.get([one.execute_checkpoint_engine.remote("prepare") for one in every])
    both = ray.get(senders[0].topology.remote(len(senders), len(receivers), prepared))
    lists = both[0]["receivers"] + both[1]["receivers"]
    calls = zip(every, lists, strict=True)
    ray.get([one.execute_checkpoint_engine.remote("init_process_group", receivers=to) for one, to in calls])

def outcome(calls):
    try:
        return ray.get(calls, timeout=60)
    except Exception as error:
        return type(error).__name__, str(error).strip().splitlines()[-1]

ray.init("local", num_cpus=4, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False,
         runtime_env={"py_executable": os.environ["PYTHON"]})
"""


def test_every_rollout_worker_gets_all_weights_of_every_sync(say):
    code = """
    senders, receivers = workers()
    for factor in (1, 2):
        connect(senders, receivers)
        *sent, first, second = ray.get([s.send.remote(factor) for s in senders] + [r.receive.remote() for r in receivers])
        print("said:", first == second, first)
        ray.get([one.execute_checkpoint_engine.remote("finalize") for one in senders + receivers])
    """
    table = [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]
    twice = [[2 * value for value in row] for row in table]
    assert say(ACTORS + textwrap.dedent(code)) == [
        f"True {[('a', weights[1], 'torch.float32'), ('b', weights, 'torch.bfloat16')]}" for weights in (table, twice)
    ]


def test_a_peer_that_is_gone_ends_the_sync_with_an_error(say):
    code = """
    senders, receivers = workers()
    connect(senders, receivers)
    began = time.monotonic()
    print("said:", *outcome([receivers[0].receive.remote()]))
    print("said:", time.monotonic() - began < 30)
    ray.kill(receivers[1])
    print("said:", outcome([senders[0].send.remote(1), receivers[0].receive.remote()])[0])
    senders, receivers = workers()
    connect(senders, receivers)
    waiting = receivers[0].receive.remote()
    ray.kill(senders[0])
    print("said:", outcome([senders[0].send.remote(1), waiting])[0])
    """
    silent, in_time, no_receiver, no_sender = say(ACTORS + textwrap.dedent(code))
    assert silent.endswith("TimeoutError: the trainer has sent no weights to this rollout worker for 2 s")
    assert in_time == "True"
    assert "ActorDiedError" in no_receiver and "ActorDiedError" in no_sender


def test_the_old_policy_of_a_step_outlives_the_optimizer(say):
    code = """
    import torch, verl
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from r3_ext.cpu import checkpoint_engine
    # As verl's worker does, at its first save.
    from verl.utils.fsdp_utils import fsdp2_sharded_load_from_cpu, fsdp2_sharded_save_to_cpu

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    fully_shard(model[0], mesh=init_device_mesh("cpu", (1,)))

    def weights():
        return [getattr(one, "_local_tensor", one).detach().tolist() for one in model.parameters()]

    old, optimizer = weights(), torch.optim.SGD(model.parameters(), lr=1.0)
    saved = fsdp2_sharded_save_to_cpu(model)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    print("said:", sum(before != after for before, after in zip(old, weights())))
    fsdp2_sharded_load_from_cpu(model, *saved)
    print("said:", weights() == old)
    """
    assert say(code) == ["4", "True"]


def test_the_trainer_may_say_that_there_are_no_hybrid_replicas(say):
    code = """
    from verl.trainer.ppo.v1 import trainer_separate_async
    from r3_ext.cpu import checkpoint_engine
    # The call in its _setup: with the level at INFO this is a TypeError.
    trainer_separate_async.logger.info("[V1SepAsync] hybrid replicas disabled", flush=True)
    print("said:", "went on")
    """
    assert say(code) == ["went on"]
