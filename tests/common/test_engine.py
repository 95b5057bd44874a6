"""What importing a recipe's engine does to the process."""

import torch

from recipe.common.trainer import engine


def test_cudnns_attention_is_off_where_a_recipe_trains():
    assert engine.R3FSDP2Engine and not torch.backends.cuda.cudnn_sdp_enabled()
