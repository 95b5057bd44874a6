"""The nodes of an existing Ray cluster (RAY_ADDRESS), in the place of this machine's cores, memory and GPUs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from r3_ext.doctor.finding import FAIL, INSTALL, OK, Finding, is_cpu
from r3_ext.doctor.gpus import GPU, generating_gpus, gpu_findings
from r3_ext.doctor.machine import cores_needed, memory_findings, shared_memory_findings
from r3_ext.doctor.storage import existing_parent
from r3_ext.host import cluster

if TYPE_CHECKING:
    from omegaconf import DictConfig


def check_cluster(config: DictConfig) -> list[Finding]:
    """Whether the nodes have what the run asks Ray for, the same packages, and one file system for checkpoints."""
    if not os.environ.get(cluster.ADDRESS):
        return []
    given = [key for key in cluster.REFUSED_KEYS if config.ray_kwargs.ray_init.get(key) is not None]
    if given:
        keys = [f"ray_kwargs.ray_init.{key}" for key in given]
        advice = "Ray refuses these for an existing cluster: leave them out"
        return [Finding(FAIL, "cluster", ", ".join(keys), advice)]
    output = existing_parent(Path(config.trainer.default_local_dir))
    model = os.path.abspath(os.path.expanduser(config.actor_rollout_ref.model.path))
    with tempfile.NamedTemporaryFile(prefix=".r3-", dir=output) as shared:
        paths = [shared.name, *([model] if os.path.exists(model) else [])]
        try:
            room = {"GPU": config.trainer.n_gpus_per_node, "CPU": cores_needed(config)}
            seen = cluster.look(paths, config.trainer.nnodes, room)
        except cluster.ClusterBusy as error:
            advice = "start one on all nodes (examples/cluster), or unset RAY_ADDRESS for a run on this machine"
            return [Finding(FAIL, "cluster", str(error), advice)]
    # verl puts rollout and reward workers on every node that has CPUs.
    nodes = [node for node in seen["nodes"] if node["resources"].get("CPU")]
    findings = nodes_findings(config, nodes, seen["has_room"])
    if any(finding.level == FAIL for finding in findings):
        return findings
    findings += package_findings(nodes, cluster.probe([])["versions"])
    findings += path_findings(config, nodes, output, *paths)
    memory, total = min(node["found"]["memory"] for node in nodes)
    findings += memory_findings(config, memory, total, "on the node with the least ")
    findings += shared_memory_findings(config, min(node["found"]["shared_memory"] for node in nodes))
    if not is_cpu(config):
        wanted = config.trainer.n_gpus_per_node
        gpus = [GPU(*gpu) for node in nodes if has_room(config, node) for gpu in node["found"]["gpus"][:wanted]]
        findings += gpu_findings(config, gpus, wanted * config.trainer.nnodes)
    return findings


def name(node: dict) -> str:
    return f"{node['address']} ({node['host']})"


def has_room(config: DictConfig, node: dict) -> bool:
    """Whether Ray can place the workers of one of the run's nodes there."""
    gpus, cores = (node["resources"].get(kind, 0) for kind in ("GPU", "CPU"))
    return gpus >= config.trainer.n_gpus_per_node and cores >= cores_needed(config)


def nodes_findings(config: DictConfig, nodes: list[dict], is_free: bool) -> list[Finding]:
    """Nodes, their GPUs and cores as Ray counts them, against what the run asks for.

    is_free: whether Ray could place it now.
    """
    wanted, gpus = config.trainer.nnodes, config.trainer.n_gpus_per_node
    parts = [
        f"{name(node)}: {node['resources'].get('GPU', 0):.0f} GPUs, {node['resources'].get('CPU', 0):.0f} CPUs"
        for node in nodes
    ]
    found = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}, {'; '.join(parts)}"
    if sum(has_room(config, node) for node in nodes) < wanted:
        advice = (
            f"trainer.nnodes={wanted} needs as many nodes with trainer.n_gpus_per_node={gpus} GPUs and "
            f"{cores_needed(config)} CPUs each, or verl waits for ever: start more, or set both to what there is"
        )
        return [Finding(FAIL, "cluster", found, advice)]
    total = wanted * gpus + generating_gpus(config)
    if sum(node["resources"].get("GPU", 0) for node in nodes) < total:
        advice = f"{wanted * gpus} train and {total - wanted * gpus} generate: start more nodes, or ask for fewer"
        return [Finding(FAIL, "cluster", f"{found}; {total} GPUs needed", advice)]
    failed = [f"{name(node)}: {node['error']}" for node in nodes if "error" in node]
    if failed:
        return [Finding(FAIL, "cluster", "; ".join(failed), f"install the project on every node: {INSTALL}")]
    needed = f"{wanted} x {gpus} GPUs with {cores_needed(config)} CPUs needed"
    if not is_free:
        advice = "another job of the cluster has some of them; wait for it, or verl waits for ever (ray status)"
        return [Finding(FAIL, "cluster", f"{found}; {needed}, and not all free", advice)]
    return [Finding(OK, "cluster", f"{found}; {needed}, and free")]


def package_findings(nodes: list[dict], here: dict[str, str]) -> list[Finding]:
    """Versions that differ between a node and this machine."""
    different = [
        f"{name(node)} has {package} {node['found']['versions'].get(package, 'not')}, this machine {here.get(package)}"
        for node in nodes
        for package in sorted({*here, *node["found"]["versions"]})
        if node["found"]["versions"].get(package) != here.get(package)
    ]
    if different:
        return [Finding(FAIL, "packages", "; ".join(different), f"install the same on every node: {INSTALL}")]
    return []


def path_findings(config: DictConfig, nodes: list[dict], output: Path, shared: str, model: str = "") -> list[Finding]:
    """Whether all nodes see the folder of the checkpoints, and a model that lies in a folder."""
    findings = []
    if blind := [name(node) for node in nodes if model and not node["found"]["sees"][model]]:
        advice = "put it on a file system that all nodes share, or to the same place on each"
        findings.append(Finding(FAIL, "model", f"{', '.join(blind)} has no {model}", advice))
    if blind := [name(node) for node in nodes if not node["found"]["sees"][shared]]:
        # Each rank writes its part of a checkpoint into the same folder, and reads it from there again.
        advice = "name a folder on a file system that all nodes share: --outputs, or trainer.default_local_dir"
        findings.append(Finding(FAIL, "checkpoints", f"{', '.join(blind)} does not see {output}", advice))
    elif config.trainer.nnodes > 1:
        findings.append(Finding(OK, "checkpoints", f"all nodes see {output}"))
    return findings
