#!/usr/bin/env bash
# R^3 on two nodes of 8 GPUs under Slurm; arguments go to `r3 run`:
#
#   sbatch --job-name=first examples/cluster/slurm.sh
#   sbatch --nodes=1 examples/cluster/slurm.sh --profile gpu_8x80gb --method grpo
#
# Submit it from the project's folder, on a file system that all nodes share. The job's name is the run's: the same sbatch
# command goes on with it. Slurm's warning comes 15 minutes before the end of the job's time: the run ends its step, saves,
# and the job is queued again.
#SBATCH --job-name=r3
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --signal=B:TERM@900
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?to be started by sbatch}"
bash examples/install.sh
python="$(bash examples/install.sh --print-python)"
export RAY_AUTH_MODE="${RAY_AUTH_MODE:-token}"

# This script runs on the first node of the job, which becomes Ray's head.
started="$(bash examples/cluster/start_ray.sh ${RAY_START_ARGS:-})"
export "$started"
workers=""
trap '[[ -z "$workers" ]] || kill "$workers"; "$python" -m ray.scripts.scripts stop > /dev/null' EXIT
others=$((SLURM_JOB_NUM_NODES - 1))
if ((others > 0)); then
    srun --nodes="$others" --ntasks="$others" --exclude="${SLURMD_NODENAME:-$(hostname -s)}" \
        --cpus-per-task="${SLURM_CPUS_ON_NODE:-1}" \
        bash examples/cluster/start_ray.sh "$RAY_ADDRESS" --block ${RAY_START_ARGS:-} &
    workers=$!
fi
"$python" -m r3_ext.host.cluster wait "$SLURM_JOB_NUM_NODES"

profile=()
[[ " $* " == *" --profile "* ]] || profile=(--profile gpu_2x8x80gb)
bash examples/run_r3_deepscaler.sh ${profile[@]+"${profile[@]}"} --run "$SLURM_JOB_NAME" "$@" &
run=$!
trap 'kill -TERM "$run"' TERM
code=0
wait "$run" || code=$?
while kill -0 "$run" 2> /dev/null; do # a signal ends `wait`, not the run
    code=0
    wait "$run" || code=$?
done
if ((code == 75 || code == 143)); then # saved, or the warning came before there was anything to save
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
