"""Random weights for a model of which only config and tokenizer are there; time and memory are those of real ones."""

from pathlib import Path

from r3_ext.host.files import replacing, sha256


def lacks_weights(model: str) -> bool:
    """Whether it is a local folder with a config.json and no weights."""
    folder = Path(model).expanduser()
    has = any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "*.bin"))
    return (folder / "config.json").is_file() and not has


def random_weights(model: str, cache: Path) -> Path:
    """A folder in the cache with the config and tokenizer of `model` and random weights, made once.

    Raises:
        OSError: config or tokenizer cannot be read or fetched.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    name = sha256(f"{model} {config.to_json_string()}")[:16]
    folder = cache / f"random-{name}"
    if not folder.exists():
        with replacing(folder) as partial:
            AutoModelForCausalLM.from_config(config, dtype=config.dtype).save_pretrained(partial)
            tokenizer.save_pretrained(partial)
    return folder
