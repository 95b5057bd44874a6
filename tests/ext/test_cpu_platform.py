"""The CPU platform is there when asked for, absent and free of charge otherwise, and never fails silently."""

import os
import subprocess
import sys
import time

import pytest

REGISTERED = "from verl.plugin.platform.platform_manager import PlatformRegistry as r; print(r.get('cpu'))"


def run_python(code: str, **env: str) -> subprocess.CompletedProcess:
    """Run `code` in a fresh interpreter: what is tested happens once per process, while verl is being imported."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("VERL_PLATFORM", "PYTHONPATH")}
    return subprocess.run(
        [sys.executable, "-c", code], env={**inherited, **env}, capture_output=True, text=True, timeout=120
    )


def test_without_the_variable_the_plugin_imports_nothing():
    loaded = "[m for m in ('torch', 'verl', 'r3_ext.cpu.platform') if m in sys.modules]"
    heavy = f"import r3_ext.cpu.plugin, sys; print({loaded})"
    started = time.monotonic()
    assert run_python(heavy).stdout.strip() == "[]"
    assert time.monotonic() - started < 20


@pytest.mark.slow
def test_without_the_variable_verl_does_not_know_the_platform():
    assert run_python(f"import verl; {REGISTERED}").stdout.strip().endswith("None")


def test_verl_loads_the_platform_through_its_entry_point():
    code = """
import importlib.metadata, os, torch, verl
from verl.utils.device import get_device_id, get_device_name, get_torch_device, is_support_ipc
print(get_device_name(), torch.zeros(1).to(get_device_id()).device, f"{get_device_name()}:{get_device_id()}")
print(is_support_ipc(), os.environ["VERL_ENGINE_DEVICE"], get_torch_device().max_memory_allocated() > 0)
"""
    done = run_python(code, VERL_PLATFORM="cpu")
    assert done.stdout.split() == ["cpu", "cpu", "cpu:0", "False", "cuda", "True"], done.stderr


@pytest.mark.slow
def test_a_checkpoint_restores_the_generator():
    code = """
import torch, verl
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager as manager
state = manager.get_rng_state()
first = torch.rand(3)
manager.load_rng_state(state)
print(torch.equal(first, torch.rand(3)))
"""
    done = run_python(code, VERL_PLATFORM="cpu")
    assert done.stdout.split() == ["True"], done.stderr


def test_a_plugin_that_cannot_load_ends_the_process():
    # psutil is a module the platform needs; None in sys.modules makes its import fail.
    done = run_python("import sys; sys.modules['psutil'] = None; import verl; print('went on')", VERL_PLATFORM="cpu")
    assert done.returncode != 0
    assert "went on" not in done.stdout
    assert "psutil" in done.stderr


@pytest.mark.slow
def test_a_doubled_backend_names_one_process_group():
    code = """
import torch, verl
from verl.utils.distributed import initialize_global_process_group_ray
initialize_global_process_group_ray()
total = torch.ones(2)
torch.distributed.all_reduce(total)
print(total.tolist(), torch.distributed.get_backend())
"""
    done = run_python(
        code, VERL_PLATFORM="cpu", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0"
    )
    assert done.stdout.split() == ["[1.0,", "1.0]", "cpu:gloo"], done.stderr


@pytest.mark.slow
def test_a_model_is_kept_in_pinned_memory_as_verl_keeps_its_reference_policy():
    """torch asks an accelerator's driver for such memory and raises where there is none."""
    code = """
import torch, verl
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from verl.utils.distributed import initialize_global_process_group_ray
initialize_global_process_group_ray()
torch.manual_seed(0)
layer, given = torch.nn.Linear(3, 2), torch.ones(1, 3)
expected = layer(given)
mesh = torch.distributed.init_device_mesh("cpu", (1,))
fully_shard(layer, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=True))
print(torch.equal(layer(given), expected))
"""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    done = run_python(code, VERL_PLATFORM="cpu", **group)
    assert done.stdout.split() == ["True"], done.stderr


@pytest.mark.slow
def test_vllm_is_found_under_the_name_verl_asks_for():
    pytest.importorskip("vllm")
    done = run_python("import verl, importlib.metadata as m; print(m.version('vllm'))", VERL_PLATFORM="cpu")
    assert done.stdout.strip().endswith("+cpu"), done.stderr


HANG_UP = """
import os, tempfile, threading, zmq
from r3_ext.cpu import weight_sync
weight_sync.DEADLINE_S = 0.5

def wait_for_answer(answer):
    address = "ipc://" + os.path.join(tempfile.mkdtemp(), "socket")
    sender = zmq.Context.instance().socket(zmq.REQ, socket_class=weight_sync.WatchingSocket)
    receiver = zmq.Context.instance().socket(zmq.REP)
    sender.bind(address)
    try:
        if answer:
            receiver.connect(address), sender.send(b"weights"), receiver.recv()
            answer(receiver)
            print(sender.recv())
        else:
            sender.send(b"weights")
    except Exception as error:
        print(type(error).__name__)

wait_for_answer(lambda receiver: receiver.send(b"taken"))
wait_for_answer(lambda receiver: receiver.close())
wait_for_answer(lambda receiver: None)
wait_for_answer(None)

class TooEarly(zmq.Poller):  # looked at the answer's socket just before the answer came, at the hang-ups just after
    def poll(self, timeout):
        while len(found := super().poll(timeout)) < 2:
            pass
        return found[1:]

zmq.Poller = TooEarly
wait_for_answer(lambda receiver: (receiver.send(b"taken"), receiver.close()))
os._exit(0)
"""


@pytest.mark.slow
def test_a_receiver_that_hangs_up_or_stays_silent_or_away_raises_in_the_sender():
    pytest.importorskip("vllm")
    done = run_python(HANG_UP, VERL_PLATFORM="cpu", PYTHONUNBUFFERED="1")
    answers = ["b'taken'", "ConnectionError", "TimeoutError", "ConnectionError", "b'taken'"]
    assert done.stdout.split()[-5:] == answers, done.stderr
