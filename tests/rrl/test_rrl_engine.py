"""The critic's model: verl loads it by its public class, with the attention of the settings."""

from types import SimpleNamespace

import pytest
from transformers import LlamaConfig, Qwen2Config

from recipe.rrl.engine import called_token_classifier
from verl.utils.model import get_hf_auto_model_class


@pytest.mark.parametrize("config", [Qwen2Config(), LlamaConfig()])
def test_within_verl_takes_the_class_with_a_head_for_tokens_and_afterwards_all_is_as_before(config):
    config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
    names = list(config.architectures)
    model = SimpleNamespace(model_type="value_model", hf_config=config)
    with called_token_classifier(model):
        assert model.model_type == "language_model"
        assert get_hf_auto_model_class(config).__name__ == "AutoModelForTokenClassification"
        made = get_hf_auto_model_class(config)._model_mapping[type(config)].__name__
        assert config.architectures == [made]
    assert (model.model_type, config.architectures) == ("value_model", names)
