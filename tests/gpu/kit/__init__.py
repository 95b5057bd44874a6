"""The acceptance of a machine that has a GPU and no network, Python 3.12 with torch 2.11 and CUDA 13, and no more.

    python -m tests.gpu.kit.build build/gpu_kit --there FREEZE      here: packages and the tiny model, in parts
    python3 -m tests.gpu.kit build/gpu_kit --out FOLDER             there, in a copy of the checkout: ten minutes
    python -m tests.gpu.kit.tables FOLDER/gpu_kit.json              its figures as tables

FREEZE is what `python3 -m pip freeze` prints there; lines with a name alone stand for a version that will do. What a
part may weigh is `--part-mib`; where they are brought one at a time, the second command keeps each, and begins when it
has all. It needs no compiler for itself, no vLLM and no right to install.
"""
