#!/usr/bin/env bash
# Baseline: verl's own dynamic sampling (DAPO), same profile, data, reward and seed as run_r3_deepscaler.sh.
# Arguments are those of `r3 run` (--profile NAME, --run NAME, --wandb) and hydra overrides; DATA, VAL_DATA and MODEL
# name local files. Without a GPU the embedded profile runs: a tiny model, minutes on two cores.
exec bash "$(dirname "${BASH_SOURCE[0]}")/run.sh" --method dapo "$@"
