import weakref

import pytest
import torch
from omegaconf import OmegaConf
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, Qwen2Config

from r3_ext.settings import sizing
from r3_ext.settings.compose import OWN_CONFIG, compose_config
from r3_ext.settings.sizing import GIB, LARGE, SMALL, Architecture
from verl.utils.experimental.torch_functional import FusedLinearForPPO


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
    assert plan.logits * GIB == 512 * 151936 * 29 + 4 * 151936 * 1536
    assert plan.rollout == pytest.approx(plan.weights + plan.moments + 0.85 * 79 + sizing.OVERHEAD_GIB)
    assert plan.cache_tokens == int((0.85 * 79 - plan.vllm_weights - 3) * GIB / SMALL.kv_bytes)


def test_plain_logits_grow_with_the_micro_batch_and_fused_ones_do_not(config):
    def logits(fused, tokens):
        config.actor_rollout_ref.model.use_fused_kernels = fused
        config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu = tokens
        return sizing.plan(config, SMALL, 79.0).logits * GIB

    config = config.copy()
    assert (logits(False, 16384), logits(False, 32768)) == (16384 * 151936 * 10, 32768 * 151936 * 10)
    assert logits(True, 16384) == logits(True, 32768)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that are alive at a time, of those made within."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.seen:
                storage = tensor.untyped_storage()
                self.seen.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self.forget, storage._cdata, storage.nbytes())
                self.most = max(self.most, self.now)
        return made

    def forget(self, key, size):
        self.seen.discard(key)
        self.now -= size


@pytest.mark.parametrize("with_entropy, bytes_per_entry", [(False, 21), (True, sizing.FUSED_LOGIT_BYTES)])
def test_fused_log_probs_hold_what_is_computed(with_entropy, bytes_per_entry):
    """verl's own function in bf16, eight chunks of it, counted tensor by tensor."""
    tokens, hidden, vocabulary = 8 * sizing.FUSED_ROWS, 32, 2048
    states = torch.randn(tokens, hidden).bfloat16().requires_grad_()
    weight = torch.randn(vocabulary, hidden).bfloat16().requires_grad_()
    with LiveBytes() as live:
        log_probs, entropy = FusedLinearForPPO()(states, weight, torch.randint(0, vocabulary, (tokens,)))
        (log_probs.sum() + entropy.sum() if with_entropy else log_probs.sum()).backward()
    computed = sizing.FUSED_ROWS * vocabulary * bytes_per_entry + 4 * vocabulary * hidden
    assert computed * 0.95 < live.most < computed * 1.02, live.most / computed


def test_the_readmes_table_is_the_computed_one():
    readme = (OWN_CONFIG / "README.md").read_text().splitlines()
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in readme
        if line[:1] == "|"
    }
    plans = [sizing.profile_plan(profile) for profile in sizing.gpu_profiles()]
    shown = {
        "update, in all": "**update, in all**",
        "of it logits": "logits",
        "rollout, in all": "**rollout, in all**",
        **{
            name: name
            for name in ("checkpoint on disk", "generated rows per step, at most", "their response tokens, at most")
        },
    }
    for name, row in shown.items():
        assert rows[name] == [sizing.ROWS[row](*pair).strip("*") for pair in plans], name


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
