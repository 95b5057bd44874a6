"""A fork of the server behaves as a new interpreter does, and starts as one where it could not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from r3_ext.cpu.fork import environment as forks
from r3_ext.cpu.fork import server as forkserver
from r3_ext.host import private_network, supervise

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder():
    with supervise.scratch_folder() as folder, forkserver.serving(folder):
        yield folder


def run(python, *arguments: str, env: dict | None = None, **settings) -> subprocess.CompletedProcess:
    env = forks.environment() if env is None else env
    return subprocess.run(
        [str(python), *arguments], env=env, capture_output=True, text=True, timeout=60, check=False, **settings
    )


BOTH = {
    "arguments": ("-c", "import sys; print(sys.argv, sys.path[0] == '')", "a b", "-c"),
    "working folder": ("-c", "import os; print(os.getcwd())"),
    "module": ("-m", "json.tool", "--help"),
    "exit code": ("-c", "raise SystemExit(7)"),
    "exit text": ("-c", "raise SystemExit('bye')"),
    "error": ("-c", "import sys; sys.tracebacklimit = 0; 1 / 0"),
    "interrupt": ("-c", "import os, signal; os.kill(os.getpid(), signal.SIGINT); __import__('time').sleep(9)"),
    "signal": ("-c", "import os; os.kill(os.getpid(), 9)"),
    "handlers at exit": (
        "-c",
        "import atexit\natexit.register(print, 'end')\nprint('begin')",
    ),
    "standard input": ("-c", "print(input())"),
    "main module": ("-c", "class A: pass\nprint(A.__module__, __name__, __import__('__main__').A is A)"),
    "threads of torch": ("-c", "import torch; print(torch.get_num_threads())"),
}


@pytest.mark.parametrize("arguments", BOTH.values(), ids=BOTH)
def test_a_fork_does_what_a_new_interpreter_does(folder, tmp_path, arguments):
    pythons = folder / forkserver.EXECUTABLE, sys.executable
    fork, new = (run(python, *arguments, cwd=tmp_path, input="line\n") for python in pythons)
    assert (fork.returncode, fork.stdout) == (new.returncode, new.stdout)
    assert fork.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def test_a_fork_has_its_temporary_files_where_it_is_told(folder, tmp_path):
    env = {**forks.environment(), "TMPDIR": str(tmp_path)}
    asked = "-c", "import tempfile; print(tempfile.gettempdir())"
    assert run(folder / forkserver.EXECUTABLE, *asked, env=env).stdout.strip() == str(tmp_path)


def test_a_fork_has_the_libraries_and_neither_ray_nor_verl_nor_the_servers_files(folder):
    loaded = "[m in sys.modules for m in ('torch', 'vllm', 'ray', 'verl')]"
    code = f"import os, sys; print({loaded}, len(os.listdir('/proc/self/fd')))"
    # The fourth descriptor is the one that lists them.
    assert run(folder / forkserver.EXECUTABLE, "-c", code).stdout == "[True, True, False, False] 4\n"


def test_a_script_and_its_inherited_descriptors(folder, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nos.write(int(sys.argv[1]), sys.path[0].encode())\n")
    read, write = os.pipe()
    done = run(folder / forkserver.EXECUTABLE, str(script), str(write), pass_fds=[write])
    os.close(write)
    assert done.returncode == 0, done.stderr
    with open(read) as pipe:
        assert pipe.read() == str(tmp_path), "and the pipe ends with the process"


@pytest.mark.parametrize(
    ("arguments", "variable"), [(("-X", "dev", "-c", "pass"), {}), (("-c", "pass"), {"OMP_NUM_THREADS": "2"})]
)
def test_what_a_fork_could_not_be_is_a_new_interpreter(folder, arguments, variable):
    env = {**forks.environment(), **variable}
    code = "import sys, torch; print(sys.flags.dev_mode, torch.get_num_threads(), 'vllm' in sys.modules)"
    done = run(folder / forkserver.EXECUTABLE, *arguments[:-1], code, env=env)
    assert done.stdout.split() == [str("-X" in arguments), variable.get("OMP_NUM_THREADS", "1"), "False"]
    assert "a new interpreter instead of a fork" in done.stderr


def test_a_fork_is_in_the_network_of_its_client(folder):
    if reason := private_network.forbidden():
        pytest.skip(reason)
    code = "import os; print(os.readlink('/proc/self/ns/net'), os.readlink('/proc/self/ns/user'))"
    both = ["sh", "-c", '"$1" -c "$0"; "$2" -c "$0"', code, sys.executable, folder / forkserver.EXECUTABLE]
    new, fork = run(*private_network.wrap([str(part) for part in both], [])).stdout.splitlines()
    assert new == fork != run(folder / forkserver.EXECUTABLE, "-c", code).stdout.strip()


def test_each_fork_has_random_numbers_of_its_own(folder):
    code = "import numpy, random, torch; print(numpy.random.rand(), random.random(), torch.rand(1).item())"
    first, second = (run(folder / forkserver.EXECUTABLE, "-c", code).stdout.split() for _ in range(2))
    assert all(one != other for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("title", "code"),
    [
        ("VLLM::EngineCore", "from vllm.utils.system_utils import set_process_title as title; title('EngineCore')"),
        ("ray::WorkerDict", "import ray; ray._raylet.setproctitle('ray::WorkerDict')"),
    ],
)
def test_titles_are_what_the_supervisor_looks_for(folder, title, code):
    code = f"{code}; print(open('/proc/self/cmdline').read().strip(chr(0)))"
    # Another environment than the server's, as Ray's workers have.
    env = {name: value for name, value in forks.environment().items() if name != "HOME"}
    assert run(folder / forkserver.EXECUTABLE, "-c", code, env={**env, "MORE": "x"}).stdout == f"{title}\n"


def start_sleeper(folder: Path, env: dict | None = None) -> tuple[subprocess.Popen, psutil.Process]:
    """The client of a fork that sleeps, and the fork."""
    command = [folder / forkserver.EXECUTABLE, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"]
    client = subprocess.Popen(
        command, env=env or forks.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return client, psutil.Process(int(client.stdout.readline()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_for_the_client_ends_the_fork(folder, number):
    client, fork = start_sleeper(folder)
    client.send_signal(number)
    assert client.wait(20) == -number
    psutil.wait_procs([fork], timeout=10)
    assert not fork.is_running()


def test_a_killed_fork_ends_its_client_in_the_same_way(folder):
    client, fork = start_sleeper(folder)
    fork.kill()
    assert client.wait(20) == -signal.SIGKILL


def test_without_a_server_the_client_starts_a_new_interpreter(tmp_path):
    done = run(sys.executable, "-IS", str(forkserver.CLIENT), str(tmp_path / "none"), "-c", "print('here')")
    assert done.stdout == "here\n" and "no fork server" in done.stderr


def test_the_server_ends_with_the_process_that_started_it():
    with supervise.scratch_folder() as folder:
        command = [sys.executable, "-m", "r3_ext.cpu.fork.server", str(folder)]
        process = subprocess.Popen(command, env=forks.environment(), stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        [server] = psutil.Process(process.pid).children()
        client, fork = start_sleeper(folder)
        process.kill()
        process.wait()
        time.sleep(2 * forkserver.ORPHAN_CHECK_S)
        assert server.is_running() and client.poll() is None, "what it started goes on"
        client.kill()
        psutil.wait_procs([server, fork], timeout=4 * forkserver.ORPHAN_CHECK_S)
        assert not server.is_running() and not fork.is_running()


def test_a_server_for_several_runs_ends_when_its_starter_is_killed():
    code = (
        "import os, pathlib, sys\n"
        "from r3_ext.cpu.fork import server as forkserver\n"
        "with forkserver.serving(pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    with supervise.scratch_folder() as folder:
        assert run(sys.executable, "-c", code, str(folder)).returncode == -signal.SIGKILL
        mine = [
            process for process in psutil.process_iter(["cmdline"]) if str(folder) in (process.info["cmdline"] or ())
        ]
        assert mine, "it served"
        _, alive = psutil.wait_procs(mine, timeout=4 * forkserver.ORPHAN_CHECK_S)
        assert not alive


def test_multiprocessing_spawns_forks(folder):
    code = (
        "import multiprocessing, os, sys\n"
        "from r3_ext.cpu.fork import environment as forks\n"
        "forks.use_for_spawned_processes()\n"
        "context = multiprocessing.get_context('spawn')\n"
        "with context.Pool(1) as pool:\n"
        "    print(pool.apply(eval, (\"'vllm' in __import__('sys').modules\",)))\n"
    )
    env = {**forks.environment(), forks.VARIABLE: str(folder / forkserver.EXECUTABLE)}
    done = run(sys.executable, "-c", code, env=env)
    assert done.stdout.strip() == "True", done.stderr


START = "import pathlib, sys\nfrom r3_ext.cpu.fork import server\nprint(server.start(pathlib.Path(sys.argv[1])))"


@pytest.mark.parametrize(("library", "before"), [("ray", "before Ray"), ("torch", "before torch is loaded")])
def test_a_process_with_ray_or_torch_cannot_become_a_server(library, before):
    with supervise.scratch_folder() as folder:
        done = run(sys.executable, "-c", f"import {library}\n{START}", str(folder))
    assert f"must start {before}" in done.stderr


def test_a_fork_becomes_a_server_of_its_own(folder):
    """As the first process of a run does that is itself a fork: it has torch from the server."""
    with supervise.scratch_folder() as second:
        done = run(folder / forkserver.EXECUTABLE, "-c", START, str(second))
    assert done.stdout.split() == [str(second / forkserver.EXECUTABLE)], done.stderr
