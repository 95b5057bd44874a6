import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, Qwen2Config

from r3_ext import sizing
from r3_ext.launch import compose_config
from r3_ext.sizing import ARCHITECTURES, GIB, Architecture

SMALL, LARGE = ARCHITECTURES.values()


def test_parameters_of_the_published_models():
    # The sizes of the safetensors files on the hub: 3,554,176,000 and 15,231,233,024 bytes of bf16.
    assert SMALL.parameters == 1_777_088_000
    assert LARGE.parameters == 7_615_616_512


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_match_a_model_built_from_the_same_config(tied):
    config = Qwen2Config(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    architecture = Architecture.from_config(config.to_dict())
    assert architecture.parameters == sum(parameter.numel() for parameter in set(model.parameters()))


def test_bytes_per_token_by_hand():
    assert SMALL.kv_bytes == 2 * 2 * 28 * 2 * 128 == 28_672  # keys and values, bf16, 28 layers, 2 heads of 128
    assert LARGE.kv_bytes == 57_344
    assert SMALL.checkpointed_bytes == 2 * 28 * 1536 == 86_016
    assert SMALL.layer_bytes == 2 * (4 * 8960 + 10 * 1536)


@pytest.fixture(scope="module")
def config():
    return compose_config(["+profile=gpu_8x80gb", "+method=r3"])


def test_fsdp_shards_sixteen_bytes_per_parameter(config):
    plan = sizing.plan(config, SMALL, 79.0)
    shards = plan.weights + plan.gradients + plan.moments
    assert shards * GIB == pytest.approx(16 * SMALL.parameters / 8)
    assert plan.checkpoint * GIB == pytest.approx(12 * SMALL.parameters)


def test_phases_add_up(config):
    plan = sizing.plan(config, SMALL, 79.0)
    parts = plan.weights + plan.gradients + plan.moments + plan.gathered + plan.activations + plan.logits
    assert plan.update == pytest.approx(parts + sizing.OVERHEAD_GIB)
    assert plan.logits * GIB == 16384 * 151936 * 10
    assert plan.rollout == pytest.approx(plan.weights + plan.moments + 0.6 * 79)
    assert plan.cache_tokens == int((0.6 * 79 - plan.vllm_weights - 3) * GIB / SMALL.kv_bytes)


def test_rows_count_reflection_groups_at_their_cap(config):
    # 128 prompts x 8, and a quarter as many reflection prompts.
    assert sizing.plan(config, SMALL, 79.0).rows == 1280
    without = OmegaConf.merge(config, {"algorithm": {"r3": {"reflection": {"enable": False}}}})
    assert sizing.plan(without, SMALL, 79.0).rows == 1024


def test_offload_policy_moves_the_shards_to_main_memory():
    config = compose_config(["+profile=gpu_1x24gb", "+method=r3"])
    plan = sizing.plan(config, SMALL, 22.5)
    assert plan.weights == plan.gradients == plan.moments == 0
    assert plan.main_memory * GIB == 20 * SMALL.parameters
    config.actor_rollout_ref.actor.fsdp_config.offload_policy = False
    assert not sizing.plan(config, SMALL, 22.5).fits


def test_what_does_not_fit_is_seen(config):
    assert sizing.plan(config, SMALL, 79.0).fits
    assert not sizing.plan(config, LARGE, 39.0).fits
    config = OmegaConf.merge(config, {"actor_rollout_ref": {"rollout": {"gpu_memory_utilization": 0.99}}})
    assert not sizing.plan(config, SMALL, 79.0).fits


def test_table_has_a_column_per_profile_and_a_line_per_figure():
    lines = sizing.table(["gpu_8x80gb", "gpu_1x24gb"]).splitlines()
    assert lines[0] == "| GiB per GPU unless said otherwise | gpu_8x80gb | gpu_1x24gb |"
    assert len(lines) == 2 + len(sizing.ROWS)
    assert {line.count("|") for line in lines} == {4}
