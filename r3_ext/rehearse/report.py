"""What a rehearsal found: the content of rehearsal.json, and what to change."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from r3_ext.doctor.finding import is_cpu
from r3_ext.record import memory
from r3_ext.record.failure import errors
from r3_ext.rehearse import predict
from r3_ext.rehearse.measured import CHECKPOINT, ROLLOUT, START, UPDATE, VALIDATION, Measured, received
from r3_ext.rehearse.predict import OFFLOAD, TOKENS, UTILIZATION, Course, Seconds
from r3_ext.rehearse.steps import FIRST, GRPO, LATER, WORST
from r3_ext.settings import sizing
from recipe.common.config.lengths import longest_row

OUT_OF_MEMORY = (
    "out of memory",
    "OutOfMemoryError",
    "can't allocate memory",
    "running low on memory",
    "KV cache",
    "memory for the cache blocks",
    "Free memory on device",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""How torch, Ray and vLLM say it."""
TOO_SMALL_A_SHARE = "increasing `gpu_memory_utilization`"
"""vLLM's words where weights and CUDA graphs leave no room for its cache."""
MARGIN = 0.05
"""What advice leaves of the budget: rehearsals of the same settings differ by a few percent."""
KINDS = (FIRST, LATER, GRPO, WORST)
KILLED = "a process that ends without an error of its own was most often killed for memory: see `dmesg`"
READ = "read run.log from the line of the first error on; r3 doctor checks what can be checked before"
SILENT = "a process of the run died without a word; see run.log"
OF_ACTOR = TOKENS, OFFLOAD
OF_CRITIC = "critic.ppo_infer_max_token_len_per_gpu", "critic.fsdp.offload_policy"
TRAINS = {
    **{"old log-probs": OF_ACTOR, "reference": OF_ACTOR, "values": OF_CRITIC},
    **{"critic's update": OF_CRITIC, UPDATE: OF_ACTOR},
}
"""By phase that trains or reads micro-batches: the settings of their tokens, and of what lies on the CPU meanwhile."""
PHASES = (
    *(ROLLOUT, "old log-probs", "reference", "values", "advantage", "critic's update", UPDATE),
    *("weight sync", "metrics"),
)
DIED = ("ActorDied", "ActorUnavailable", "WorkerCrashed", "EngineDead")
"""How Ray and vLLM name a process that ended without an error of its own."""


def biggest(peak: dict, config: DictConfig) -> float:
    """What the budget is compared with: the main memory of the run without a GPU, else the fullest GPU; GiB."""
    return peak.get("main", 0.0) if is_cpu(config) else max(peak.get("gpus", [0.0]))


def failure(measured: Measured, log: Path) -> dict:
    """Where and why a rehearsal ended before its time."""
    last = measured.phases[-1] if measured.phases else None
    found = [text for _, text in errors(log)]
    memory_error = next((text for text in found if any(word in text for word in OUT_OF_MEMORY)), None)
    return {
        "phase": last.name if last else "start",
        "step": last.step if last else 0,
        "kind": last.kind if last else None,
        "out_of_memory": memory_error is not None,
        "error": (memory_error or (found[0] if found else SILENT))[:300],
        "peak": memory.peak(measured.samples),
    }


def contents(config: DictConfig, measured: Measured, facts: dict) -> dict:
    """Everything the report tells, of a rehearsal that came to its end.

    facts: problems of the data set, caps, rows_folder, checkpoint bytes, budget, sizing.
    """
    seconds = measured.seconds()
    course = Course.of(config, facts["problems"])
    kinds = [kind for kind in KINDS if measured.steps(kind)]
    typical = [measured.peak(kind) for kind in (FIRST, LATER)]
    typical += [phase_peak(measured, name) for name in (START, CHECKPOINT, VALIDATION)]
    return {
        "phases": {kind: phases_of(measured, kind) for kind in kinds},
        "start": {"seconds": round(seconds.start, 1), "memory": phase_peak(measured, START)},
        "validation": {"seconds": round(seconds.validation, 2), "memory": phase_peak(measured, VALIDATION)},
        "checkpoint": {
            "seconds": round(seconds.checkpoint, 2),
            "memory": phase_peak(measured, CHECKPOINT),
            "bytes": facts["checkpoint_bytes"],
        },
        "step_seconds": {kind: round(measured.step_seconds(kind), 2) for kind in kinds},
        "worst_case": worst_step(config, measured, facts),
        "memory": {
            "budget": facts["budget"],
            "typical": max(biggest(peak, config) for peak in typical),
            "worst": biggest(measured.peak(WORST), config),
            "per_gpu": measured.peak(WORST).get("gpus", []),
        },
        "prediction": prediction(config, course, seconds),
        "disk": disk_space(config, course, measured, facts),
        "sizing": facts["sizing"],
    }


def phases_of(measured: Measured, kind: str) -> dict:
    """Seconds, tokens and memory of each phase of the steps of a kind."""
    return {
        name: {
            "seconds": round(measured.phase_seconds(name, kind), 3),
            "tokens": round(measured.tokens(kind, name)),
            "memory": measured.peak(kind, name),
        }
        for name in PHASES
        if measured.phase_seconds(name, kind)
    }


def worst_step(config: DictConfig, measured: Measured, facts: dict) -> dict:
    """What trained in the worst step, and what the settings allow."""
    [step] = measured.steps(WORST)
    row = measured.rows[step]
    lengths = [int(row[f"response_length/{end}"]) for end in ("min", "max")]
    trained = {"fresh": int(row["fresh/rows"]), "fresh_tokens": lengths}
    return {
        "received": received(facts["rows_folder"], step) if has_mechanisms(facts["caps"]) else trained,
        "caps": facts["caps"],
        "n": config.actor_rollout_ref.rollout.n,
        "response_limit": config.data.max_response_length,
        "prompt_limit": config.data.max_prompt_length,
        "longest_prompt": row["prompt_length/max"],
        "shortest_prompt": row["prompt_length/min"],
        "reflection_prompts": row.get("reflection/prompts", 0),
    }


def has_mechanisms(caps: dict[str, int]) -> bool:
    """Whether it is R^3 that was rehearsed."""
    return "replayed" in caps


def prediction(config: DictConfig, course: Course, seconds: Seconds) -> dict:
    """What the whole run will take."""
    gpus = 0 if is_cpu(config) else config.trainer.n_gpus_per_node * config.trainer.nnodes
    total, of_grpo = predict.run_seconds(course, seconds), predict.grpo_seconds(course, seconds)
    return {
        "steps": course.steps,
        "validations": course.validations,
        "checkpoints": course.checkpoints,
        "seconds": round(total, 1),
        "seconds_if_every_step_is_the_worst": round(predict.worst_seconds(course, seconds), 1),
        "seconds_of_grpo": None if of_grpo is None else round(of_grpo, 1),
        "gpu_hours": round(total * gpus / 3600, 2),
    }


def disk_space(config: DictConfig, course: Course, measured: Measured, facts: dict) -> dict:
    """Bytes of the checkpoints and of R^3's history."""
    kept = config.trainer.max_actor_ckpt_to_keep or course.checkpoints
    found = {"checkpoint": facts["checkpoint_bytes"], "checkpoints_kept": min(course.checkpoints, kept)}
    if not has_mechanisms(facts["caps"]):
        return found
    later = [measured.rows[step] for step in measured.steps(LATER)]
    tokens = sum(row["generated/tokens"] for row in later) / len(later)
    rows = sum(row["fresh/rows"] + row["reflection/rows"] for row in later) / len(later)
    of_step = tokens * history_token_bytes(measured)
    history = predict.history_bytes(config, course.steps, facts["problems"], rows, of_step / rows)
    return found | {"history_step": round(of_step), "history": round(history)}


def phase_peak(measured: Measured, name: str) -> dict:
    return memory.peak(measured.samples_in(*(phase for phase in measured.phases if phase.name == name)))


def history_token_bytes(measured: Measured) -> float:
    """Bytes of the history per generated token, over the steps before the worst one."""
    steps = [step for kind in (FIRST, LATER, GRPO) for step in measured.steps(kind)]
    first, last = min(steps), max(steps)
    grown = measured.rows[last]["history/live_bytes"] - measured.rows[first]["history/live_bytes"]
    tokens = sum(measured.rows[step]["generated/tokens"] for step in steps if step > first)
    return max(0.0, grown / tokens) if tokens else 0.0


def advice(config: DictConfig, measured: Measured, budget: float) -> list[str]:
    """What to change so that the worst step fits; [] when it does."""
    worst = biggest(measured.peak(WORST), config)
    if worst <= budget:
        return []
    actor, longest = config.actor_rollout_ref.actor, longest_row(config)
    found: dict[tuple[str, str], list[int | None]] = {}
    for name, keys in TRAINS.items():
        before = biggest(measured.before(WORST, name), config)
        peak = biggest(measured.peak(WORST, name), config)
        if peak > budget and actor.use_dynamic_bsz:
            aim = (1 - MARGIN) * budget
            tokens = predict.tokens_that_fit(aim, before, peak, OmegaConf.select(config, keys[0]), longest)
            found.setdefault(keys, []).append(tokens)
    lines = []
    for (tokens_key, offload), fitting in found.items():
        if None in fitting:
            lines.append(
                f"no micro-batch of a whole row ({longest} tokens) fits beside what the other processes hold: "
                f"{'give the run more main memory' if is_cpu(config) else offload + '=True'}, or shorten "
                "data.max_response_length or data.max_prompt_length"
            )
        else:
            lines.append(f"{tokens_key}={min(fitting)}")
    rollout = biggest(measured.peak(WORST, ROLLOUT), config)
    if rollout > budget:
        share = config.actor_rollout_ref.rollout.gpu_memory_utilization
        if is_cpu(config):
            lines.append(f"{rollout - budget:.2f} GiB too much while responses are generated: more main memory, or")
            lines.append("a smaller actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes")
        else:
            lines.append(f"{UTILIZATION}={max(0.1, share - (rollout - budget) / budget):.2f}")
    return lines or [f"the worst step takes {worst:.2f} GiB outside of rollout and update: more memory"]


def failure_advice(config: DictConfig, failed: dict) -> list[str]:
    """What to change after a rehearsal that ran out of memory or lost a process; of any other error, where to look."""
    died = failed["error"] == SILENT or any(word in failed["error"] for word in DIED)
    if not (died or failed["out_of_memory"]):
        return [READ]
    return ([KILLED] if died else []) + settings_advice(config, failed)


def settings_advice(config: DictConfig, failed: dict) -> list[str]:
    """The setting that holds the memory of the phase that failed."""
    longest = longest_row(config)
    if not failed["out_of_memory"] and failed["phase"] not in (*TRAINS, ROLLOUT):
        return [READ]
    if failed["phase"] in TRAINS:
        tokens_key, offload = TRAINS[failed["phase"]]
        tokens = OmegaConf.select(config, tokens_key)
        half = max(longest, tokens // 2)
        if half < tokens:
            return [f"{tokens_key}={half}, half of now, and rehearse again"]
        return [f"{offload}=True, or shorter data.max_response_length: the micro-batch holds one row already"]
    if is_cpu(config):
        return ["a smaller actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes, or more main memory"]
    share = config.actor_rollout_ref.rollout.gpu_memory_utilization
    share += 0.1 if TOO_SMALL_A_SHARE in failed["error"] else -0.1
    return [f"{UTILIZATION}={min(0.95, max(0.1, share)):.2f}, and rehearse again"]


def sized(plan: sizing.Plan | None) -> dict:
    """The computed figures that the measured ones are compared with; GiB per GPU."""
    if plan is None:
        return {}
    figures = {"update": plan.update, "rollout": plan.rollout, "of it vLLM": plan.vllm, "checkpoint": plan.checkpoint}
    return {name: round(value, 1) for name, value in figures.items()}
