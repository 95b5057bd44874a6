#!/usr/bin/env bash
# R^3 on DeepScaleR: GRPO with replay, reflection and ranking rewards.
# Arguments are those of `r3 run` (--profile NAME, --run NAME, --wandb) and hydra overrides; DATA, VAL_DATA and MODEL
# name local files. Without a GPU the embedded profile runs: a tiny model, minutes on two cores.
exec bash "$(dirname "${BASH_SOURCE[0]}")/run.sh" --method r3 "$@"
