#!/usr/bin/env bash
# R^3 on DeepScaleR with DeepSeek-R1-Distill-Qwen-7B on 8 x 80 GB; arguments as in run_r3_deepscaler.sh.
exec bash "$(dirname "${BASH_SOURCE[0]}")/run.sh" --method r3 --profile gpu_8x80gb_7b "$@"
