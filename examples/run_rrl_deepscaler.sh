#!/usr/bin/env bash
# RRL-style replay on DeepScaleR: PPO whose policy starts again from states that it reached earlier. `--method ppo` is the
# baseline with the same critic.
# Arguments are those of `r3 run` (--profile NAME, --run NAME, --wandb) and hydra overrides; DATA, VAL_DATA and MODEL
# name local files. Without a GPU the embedded profile runs: a tiny model, minutes on two cores.
exec bash "$(dirname "${BASH_SOURCE[0]}")/run.sh" --method rrl "$@"
