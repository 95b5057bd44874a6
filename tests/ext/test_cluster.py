"""What the doctor says of a cluster's nodes, and what a run is given there. Real ones: integration/test_cluster.py."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from r3_ext.doctor import cluster as doctor
from r3_ext.doctor.finding import FAIL, OK
from r3_ext.host import cluster
from r3_ext.host.supervise import WorkerDied
from r3_ext.host.units import GIB
from r3_ext.run import train
from r3_ext.run.start import Start
from r3_ext.settings import choose

VERSIONS = {"torch": "2.13.0", "verl": "0.9.1"}
NODE = {
    "id": "a",
    "address": "10.0.0.1",
    "host": "one",
    "resources": {"GPU": 8.0, "CPU": 96.0},
    "found": {
        "gpus": [["H100", 79.6, 0.0, "580.1"]] * 8,
        "memory": [900 * GIB, 1000 * GIB],
        "shared_memory": 400 * GIB,
        "versions": VERSIONS,
        "sees": {"/shared/.r3-x": True, "/models/m": True},
    },
}


@pytest.fixture
def nodes() -> list[dict]:
    second = copy.deepcopy(NODE) | {"id": "b", "address": "10.0.0.2", "host": "two"}
    return [copy.deepcopy(NODE), second]


@pytest.fixture
def config():
    """What the checks read of a configuration: two nodes of eight GPUs."""
    return OmegaConf.create(
        {
            "trainer": {"nnodes": 2, "n_gpus_per_node": 8, "device": "cuda", "v1": {"trainer_mode": "sync"}},
            "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 8}}},
        }
    )


def test_nodes_with_room_pass(config, nodes):
    [finding] = doctor.nodes_findings(config, nodes, True)
    assert finding.level == OK and "10.0.0.2 (two): 8 GPUs, 96 CPUs" in finding.found
    [finding] = doctor.nodes_findings(config, nodes, False)
    assert finding.level == FAIL and "not all free" in finding.found


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda nodes: nodes.pop(), "trainer.nnodes=2"),
        (lambda nodes: nodes[1]["resources"].pop("GPU"), "trainer.n_gpus_per_node=8"),
        (lambda nodes: nodes[1]["resources"].update(CPU=28), "29 CPUs each"),
        (lambda nodes: nodes[1].update(error="No module named 'r3_ext'"), "10.0.0.2 (two): No module named 'r3_ext'"),
    ],
)
def test_what_verl_would_wait_for_for_ever_fails(config, nodes, change, told):
    change(nodes)
    [finding] = doctor.nodes_findings(config, nodes, True)
    assert finding.level == FAIL and told in finding.found + finding.advice


def test_a_head_node_without_gpus_is_no_obstacle(config, nodes):
    head = {**copy.deepcopy(NODE), "resources": {"CPU": 4.0}}
    [finding] = doctor.nodes_findings(config, [head, *nodes], True)
    assert finding.level == OK
    head["error"] = "No module named 'r3_ext'"
    [finding] = doctor.nodes_findings(config, [head, *nodes], True)
    assert finding.level == FAIL, "verl puts rollout and reward workers there"


def test_packages_must_be_the_same_everywhere(nodes):
    assert doctor.package_findings(nodes, VERSIONS) == []
    nodes[1]["found"]["versions"] = {"torch": "2.12.0"}
    [finding] = doctor.package_findings(nodes, VERSIONS)
    assert finding.level == FAIL
    assert "10.0.0.2 (two) has torch 2.12.0, this machine 2.13.0" in finding.found
    assert "10.0.0.2 (two) has verl not, this machine 0.9.1" in finding.found


def test_checkpoints_and_model_must_be_seen_by_all_nodes(config, nodes):
    paths = "/shared/.r3-x", "/models/m"
    [finding] = doctor.path_findings(config, nodes, Path("/shared"), *paths)
    assert finding.level == OK
    nodes[1]["found"]["sees"] = dict.fromkeys(paths, False)
    model, checkpoints = doctor.path_findings(config, nodes, Path("/shared"), *paths)
    assert (model.level, checkpoints.level) == (FAIL, FAIL)
    assert "10.0.0.2 (two) has no /models/m" in model.found and "does not see /shared" in checkpoints.found


def test_a_head_node_without_gpus_does_not_choose_the_profile(monkeypatch):
    monkeypatch.setattr(choose, "list_gpus", lambda: [])
    monkeypatch.delenv("R3_DEVICE", raising=False)
    monkeypatch.delenv(cluster.ADDRESS, raising=False)
    assert choose.default_profile() == "embedded"
    monkeypatch.setenv(cluster.ADDRESS, "10.0.0.1:6379")
    with pytest.raises(ValueError, match="--profile"):
        choose.default_profile()
    monkeypatch.setenv("R3_DEVICE", "cpu")
    assert choose.default_profile() == "embedded"


def test_the_loggers_of_a_cluster_write_into_the_run_folder_and_the_embedded_profile_goes_along(monkeypatch, tmp_path):
    def variables(profile: str) -> dict[str, str]:
        start = Start(tmp_path, {"profile": profile, "method": "r3"}, {}, [])
        texts = [text.removeprefix("++ray_kwargs.ray_init.runtime_env.env_vars.") for text in env(start)]
        return dict(text.split("=", 1) for text in texts)

    env = train.environment_overrides
    monkeypatch.delenv(cluster.ADDRESS, raising=False)
    monkeypatch.delenv(train.CONTAINER_LOG_LEVEL, raising=False)
    files = {"VERL_FILE_LOGGER_PATH", "TENSORBOARD_DIR"}
    always = {*files, train.CONTAINER_LOG_LEVEL}
    assert variables("embedded").keys() == always
    assert all(str(tmp_path) in variables("embedded")[name] for name in files)
    assert variables("embedded")[train.CONTAINER_LOG_LEVEL] == "'WARNING'", "else a recipe's warnings are lost"
    monkeypatch.setenv(cluster.ADDRESS, "auto")
    assert variables("gpu_8x80gb").keys() == always
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    for name in launch_environment():
        monkeypatch.setenv(name, "1")
    assert variables("embedded").keys() == {*always, "VERL_PLATFORM", *launch_environment()}


def launch_environment() -> set[str]:
    from r3_ext.cpu.fork.environment import ENVIRONMENT

    return set(ENVIRONMENT)


def test_a_cluster_takes_no_resources(monkeypatch):
    monkeypatch.delenv(cluster.ADDRESS, raising=False)
    assert cluster.overrides() == []
    monkeypatch.setenv(cluster.ADDRESS, "auto")
    assert cluster.overrides() == [f"ray_kwargs.ray_init.{key}=null" for key in cluster.REFUSED_KEYS]


@pytest.fixture
def reported(monkeypatch):
    """A cluster whose process writes what it is told, and a function that tells it the living nodes."""
    monkeypatch.setenv(cluster.ADDRESS, "10.0.0.1:6379")
    reading, writing = os.pipe()
    source = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdout=subprocess.PIPE)
    source.stdout.close()
    source.stdout = open(reading, "rb")
    others = [NODE | {"id": "b", "host": "two"}, NODE | {"id": "c", "host": "idle"}]
    held = cluster.Cluster(source, {"nodes": [NODE, *others], "used": []})

    def tell(*ids: str) -> None:
        report = {"nodes": [{"id": name} for name in ids], "used": ["a", "b"]}
        os.write(writing, json.dumps(report).encode() + b"\n")

    yield held, tell
    source.kill()
    source.wait()
    source.stdout.close()
    os.close(writing)


def test_a_dead_node_is_named_and_ends_a_run_that_goes_on(reported, monkeypatch):
    held, tell = reported
    monkeypatch.setattr(cluster, "GRACE_S", 0.0)
    tell("a", "b", "c")
    held.check()
    assert not held.died
    tell("a", "b")
    held.check()
    assert list(held.died) == ["c"], "nothing of the run was there: it goes on"
    monkeypatch.setattr(cluster, "GRACE_S", 60.0)
    tell("a")
    held.check()  # the trainer has time to end by itself
    monkeypatch.setattr(cluster, "GRACE_S", 0.0)
    tell("a", "b", "c")  # a node does not come back: Ray gives a new one a new id
    with pytest.raises(WorkerDied, match=r"node 10.0.0.1 \(two\) died"):
        held.check()


def test_the_end_of_the_connection_is_the_end_of_the_cluster(reported):
    held, _ = reported
    held.process.kill()
    held.process.wait()
    with pytest.raises(WorkerDied, match="10.0.0.1:6379 is gone"):
        held.check()


def test_without_a_cluster_nothing_is_held(monkeypatch):
    monkeypatch.delenv(cluster.ADDRESS, raising=False)
    with cluster.held(Path("run")) as held:
        assert held is None


def test_an_address_without_a_cluster_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv(cluster.ADDRESS, "127.0.0.1:1")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(cluster.ClusterBusy, match="127.0.0.1:1: no Ray cluster answers there"):
        cluster.look([], 1, {"CPU": 1})
