"""What a model needs without a GPU: computed sizes against tensors, taken by a run, checked by the doctor."""

import json
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from r3_ext.doctor import machine, sizes
from r3_ext.doctor.finding import FAIL, OK, WARN
from r3_ext.settings import sizing_cpu
from r3_ext.settings.compose import ROOT, base_overrides, compose_config
from r3_ext.settings.sizing import GIB, Architecture
from tests.ext.test_sizing import LiveBytes
from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits


def shape(kind: str, hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocabulary: int, **more):
    """A config.json."""
    return {
        **{"model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads},
        **{"num_key_value_heads": kv_heads, "intermediate_size": intermediate, "vocab_size": vocabulary},
        **{"tie_word_embeddings": True, **more},
    }


MODELS = {
    "SmolLM2-135M": shape("llama", 576, 30, 9, 3, 1536, 49152),
    "SmolLM2-360M": shape("llama", 960, 32, 15, 5, 2560, 49152),
    "Qwen2.5-0.5B": shape("qwen2", 896, 24, 14, 2, 4864, 151936),
    "Qwen3-0.6B": shape("qwen3", 1024, 28, 16, 8, 3072, 151936, head_dim=128),
    "Qwen2.5-1.5B": shape("qwen2", 1536, 28, 12, 2, 8960, 151936),
}
SMOLLM2, QWEN_05B, QWEN_15B = (MODELS[name] for name in ("SmolLM2-135M", "Qwen2.5-0.5B", "Qwen2.5-1.5B"))
BASE = base_overrides("embedded", "r3")


def composed(*overrides: str):
    return compose_config([*BASE, *overrides])


@pytest.fixture
def folder_of(tmp_path):
    """folder_of(config): an override that names a model's folder with that config.json."""

    def write(config: dict) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))  # what was read once of a folder is kept
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        return f"actor_rollout_ref.model.path={folder}"

    return write


def sized(*overrides: str):
    return sizes.sized(lambda given: [*BASE, *given, *overrides], [])


SMALL = {
    **{"hidden_size": 64, "intermediate_size": 170, "num_hidden_layers": 4, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 16},
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("vocabulary, kind", [(96, LlamaConfig), (900, Qwen2Config), (900, Qwen3Config)])
def test_the_largest_weight_is_that_of_the_model(vocabulary, kind, tied):
    config = kind(vocab_size=vocabulary, tie_word_embeddings=tied, **SMALL)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    largest = max(parameter.numel() for parameter in model.parameters())
    assert sizing_cpu.largest_weight(Architecture.from_config(config.to_dict())) == 4 * largest


def live_bytes(config, tokens: int, packed: bool, with_entropy: bool) -> int:
    """The most that lives at a time while verl's log-probs of so many tokens, in rows of 32, are differentiated."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    rows, place = torch.randint(0, config.vocab_size, (tokens // 32, 32)), torch.arange(32)
    mask = torch.ones_like(rows)
    mask[:, 31] = 0  # of no other row: one without padding needs no mask
    given = {"input_ids": rows, "attention_mask": mask, "position_ids": place.expand_as(rows)}
    if packed:
        given = {"input_ids": rows.view(1, -1), "position_ids": place.repeat(len(rows)).unsqueeze(0)}
    with LiveBytes() as live:
        output = model(use_cache=False, **given)  # kept, as verl keeps it
        logits = output.logits / 0.7
        entropy = entropy_from_logits(logits).sum() if with_entropy else 0
        logits = logits.squeeze(0) if packed else torch.cat(list(logits.unbind()))
        (logprobs_from_logits(logits, rows.view(-1)).sum() + entropy).backward()
    return live.most


def micro_batch(config, tokens: int, packed: bool, with_entropy: bool = False) -> int:
    settings = composed(
        *("data.max_prompt_length=16", "data.max_response_length=16"),
        f"actor_rollout_ref.model.use_remove_padding={packed}",
        f"actor_rollout_ref.actor.entropy_coeff={0.1 if with_entropy else 0}",
    )
    return sizing_cpu.micro_batch_bytes(settings, Architecture.from_config(config.to_dict()), tokens)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config, Qwen3Config])
def test_a_micro_batch_holds_the_activations_that_are_computed(kind, packed):
    config, tokens = kind(vocab_size=16, **SMALL), 512
    assert micro_batch(config, tokens, packed) == pytest.approx(live_bytes(config, tokens, packed, False), rel=0.12)


@pytest.mark.parametrize("with_entropy", [False, True])
def test_and_the_logits_of_all_its_tokens(with_entropy):
    narrow = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1}
    config, tokens = LlamaConfig(vocab_size=8192, num_hidden_layers=1, **narrow), 128
    counted = live_bytes(config, tokens, True, with_entropy)
    assert micro_batch(config, tokens, True, with_entropy) == pytest.approx(counted, rel=0.05)


def test_the_tiny_model_changes_nothing(folder_of):
    given = folder_of(shape("qwen2", 128, 4, 4, 2, 384, 2048))
    assert sized(given)[0] == [*BASE, given]


def test_a_real_model_gets_its_bucket_and_a_micro_batch_within_the_bound(folder_of):
    overrides, config = sized(folder_of(SMOLLM2))
    bucket, tokens, packed = overrides[len(BASE) : -1]
    assert bucket == f"{sizing_cpu.BUCKET}={49152 * 576 * 4 // 2**20}" == f"{sizing_cpu.BUCKET}=108"
    assert (tokens, packed) == (f"{sizing_cpu.TOKENS}=1472", f"{sizing_cpu.PACKED}=True")
    assert config.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu == 1472, "old log-probs too"
    architecture = Architecture.from_config(SMOLLM2)
    taken = [sizing_cpu.micro_batch_bytes(config, architecture, size) / GIB for size in (1472, 1536)]
    assert taken[0] <= sizing_cpu.MICRO_BATCH_GIB < taken[1]


def test_a_micro_batch_holds_at_least_the_longest_row_and_the_cache_too(folder_of):
    lengths = ["data.max_prompt_length=6000", "data.max_response_length=2000"]
    lengths += ["actor_rollout_ref.rollout.max_model_len=8000"]
    overrides, config = sized(folder_of(SMOLLM2), *lengths)
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 8000
    # 30 layers of 3 heads of 64, keys and values, fp32: 46,080 bytes a token, more than the profile's 256 MiB.
    assert f"{sizing_cpu.CACHE}={8000 * 46080}" in overrides
    assert sizes.check_sizes(config) == []


def test_what_somebody_chose_stays_and_is_checked_before_anything_is_loaded(folder_of):
    given = folder_of(SMOLLM2)
    overrides, config = sized(given, f"{sizing_cpu.BUCKET}=64", f"{sizing_cpu.TOKENS}=600")
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 600
    [finding] = sizes.check_sizes(config)
    assert (finding.level, finding.found) == (FAIL, f"{sizing_cpu.BUCKET} must be at least 108 for this model, got 64")
    advised = finding.advice.split(" ")[1].rstrip(",")
    assert sizes.check_sizes(sized(given, advised)[1]) == []


def test_wrong_values_are_left_to_the_check_of_values(folder_of):
    assert sized(folder_of(SMOLLM2), "data.max_prompt_length=much")[1].data.max_prompt_length == "much"


@pytest.mark.parametrize("model, total, level", [(SMOLLM2, 24, OK), (QWEN_05B, 24, OK), (QWEN_15B, 24, FAIL)])
def test_what_fits_and_what_does_not(folder_of, model, total, level):
    _, config = sized(folder_of(model))
    [finding] = machine.memory_findings(config, total * GIB, total * GIB)
    assert finding.level == level, finding
    assert level == OK or finding.advice.startswith("take a smaller model")


def test_too_many_tokens_are_told_and_the_advice_fits(folder_of):
    given = folder_of(SMOLLM2)
    _, config = sized(given, f"{sizing_cpu.TOKENS}=16384")
    [finding] = machine.memory_findings(config, 20 * GIB, 24 * GIB)
    assert finding.level == WARN
    advised = finding.advice.split("set ")[1]
    [finding] = machine.memory_findings(sized(given, advised)[1], 20 * GIB, 24 * GIB)
    assert finding.level == OK


def test_copies_of_the_weights_are_counted(folder_of):
    given = folder_of(SMOLLM2)
    weights = 4 * Architecture.from_config(SMOLLM2).parameters / GIB

    def memory(*overrides: str) -> float:
        return sum(sizes.main_memory(sized(given, *overrides)[1]).values())

    plain = memory()
    assert memory("actor_rollout_ref.actor.use_kl_loss=True") == pytest.approx(plain + weights)
    separate = ["+mode=embedded_separate_async", "trainer.v1.trainer_mode=r3_separate_async"]
    assert memory(*separate) == pytest.approx(plain + 2 * weights + sizing_cpu.RANK_GIB)


def test_the_data_pages_table_is_the_computed_one(folder_of):
    rows = {}
    for name, model in MODELS.items():
        _, config = sized(folder_of(model))
        rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
        bucket, tokens = rollout.checkpoint_engine.update_weights_bucket_megabytes, actor.ppo_max_token_len_per_gpu
        needed = sum(sizes.main_memory(config).values())
        rows[name] = f"{model['vocab_size']:,} | {bucket} | {tokens:,} | {needed:.0f}"
    text = (ROOT / "docs" / "data-and-rewards.md").read_text()
    assert {name: found[1] for name in rows if (found := re.search(rf"^\| {name} \| (.*) \|$", text, re.M))} == rows
