"""The training worker divides by the rows that train: verl's worker, engine and loss in a process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEP = """
import json, sys
from functools import partial
from pathlib import Path

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.dataset_utils import DatasetPadMode
from verl.workers.config import FSDPActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.config import TrainingWorkerConfig
from verl.workers.utils.losses import ppo_loss

from recipe.common.trainer.workers import CountingTrainingWorker
from tests.gpu.engine import save_model
from tests.gpu.shapes import SMALL

dtypes = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
worker = CountingTrainingWorker(TrainingWorkerConfig(
    model_type="language_model",
    model_config=HFModelConfig(
        path=str(save_model(SMALL, Path(sys.argv[1]))),
        load_tokenizer=False,
        use_remove_padding=False,
        override_config={"attn_implementation": "sdpa"},
    ),
    engine_config=FSDPEngineConfig(
        strategy="fsdp2", mixed_precision=dtypes, use_torch_compile=False, use_dynamic_bsz=True,
        max_token_len_per_gpu=1000,
    ),
    optimizer_config=FSDPOptimizerConfig(lr=0.0),
    checkpoint_config=CheckpointConfig(),
))
worker.reset()

def gradient_norm(mode, padding):
    actor = FSDPActorConfig(
        strategy="fsdp2", rollout_n=2, use_dynamic_bsz=True, loss_agg_mode=mode, loss_scale_factor=8
    )
    worker.set_loss_fn(partial(ppo_loss, config=actor))
    lengths = [2, 3, 4] + [1] * padding
    trained = [1] * 3 + [0] * padding
    columns = {
        "prompts": [torch.tensor([5, 6]) for _ in lengths],
        "responses": [torch.arange(7, 7 + length) for length in lengths],
        "response_mask": [torch.full((length,), on) for length, on in zip(lengths, trained)],
        "old_log_probs": [torch.full((length,), -1.0) for length in lengths],
        "advantages": [torch.full((length,), float(on * length - 3)) for length, on in zip(lengths, trained)],
    }
    columns["loss_mask"] = columns["response_mask"]
    columns["input_ids"] = [torch.cat(both) for both in zip(columns["prompts"], columns["responses"])]
    columns["position_ids"] = [torch.arange(len(row)) for row in columns["input_ids"]]
    nested = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in columns.items()}
    nested["uid"] = NonTensorStack(*(NonTensorData(f"row{number}") for number in range(len(lengths))))
    nested["session_id"] = torch.arange(len(lengths))
    data = TensorDict(nested, batch_size=len(lengths))
    tu.assign_non_tensor(
        data, mini_batch_size=len(lengths), global_batch_size=len(lengths), epochs=1, seed=1, temperature=1.0,
        calculate_entropy=False, pad_mode=DatasetPadMode.NO_PADDING, dataloader_kwargs={"shuffle": False},
    )
    [norm] = tu.get(worker.train_mini_batch(data), key="metrics")["grad_norm"]
    return norm

modes = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
print("NORMS", json.dumps({mode: [gradient_norm(mode, padding) for padding in (0, 3)] for mode in modes}))
"""


@pytest.mark.slow
def test_empty_padding_rows_do_not_shrink_the_gradient(tmp_path):
    """verl divides by its number of rows: 3 empty ones beside 3 would halve a mean over rows."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", STEP, str(tmp_path / "model")],
        cwd=ROOT,
        env={**os.environ, "VERL_PLATFORM": "cpu", **group},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("NORMS")]
    norms = json.loads(line.removeprefix("NORMS"))
    assert len(norms) == 5
    for mode, (without, padded) in norms.items():
        assert without > 0 and padded == pytest.approx(without, rel=1e-5), mode
