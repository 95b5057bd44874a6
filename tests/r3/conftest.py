from pathlib import Path

import pytest
from collector import replayer
from configured import part
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from recipe.common.trainer.watchdog import StallWatch
from recipe.r3.config import r3_config
from recipe.r3.history.store import History
from recipe.r3.replay.buffer import R3ReplayBuffer
from recipe.r3.replay.buffer_async import R3ReplayBufferAsync

CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{- '<|' + message.role + '|>' + message.content + '<|end|>' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' + ('<think>' if thinking else '') -}}{%- endif -%}"
)


@pytest.fixture
def history(tmp_path, request):
    """Holds 16 samples per query and outcome, or MAX_PER_OUTCOME of the file that asks for it."""
    most = getattr(request.module, "MAX_PER_OUTCOME", 16)
    history = History(str(tmp_path / "history.sqlite"), max_per_outcome=most)
    yield history
    history.close()


@pytest.fixture
def new_history(tmp_path):
    """Makes histories, each in a file of its own, which are closed at the end."""
    made = []

    def make(max_per_outcome: int = 3, **settings) -> History:
        made.append(History(str(tmp_path / f"{len(made)}.sqlite"), max_per_outcome, **settings))
        return made[-1]

    yield make
    for history in made:
        history.close()


@pytest.fixture
def path(tmp_path):
    """Where a history may lie; nothing does yet."""
    return str(tmp_path / "history.sqlite")


@pytest.fixture
def make_buffer(transfer_queue, history):
    """make_buffer(stall_timeout_s, check_workers, **replay settings)"""

    def make(stall_timeout_s: float = 30.0, check_workers=lambda: None, **replay) -> R3ReplayBuffer:
        buffer = R3ReplayBuffer("sync", {}, None, "drop", OmegaConf.create({}), poll_interval=0.02)
        buffer.attach(replayer(history, **replay), StallWatch(stall_timeout_s, "stall_timeout_s"), check_workers)
        return buffer

    return make


@pytest.fixture
def make_async(make_buffer, history):
    """make_async(cap, strategy, threshold, refills, stall_timeout_s): `refills` takes up how many prompts
    verl asks for."""

    def make(cap=2, strategy="wait", threshold=3, refills=None, stall_timeout_s=5.0, **replay) -> R3ReplayBufferAsync:
        settings = OmegaConf.create({})
        refill = (refills if refills is not None else []).append
        kind = "colocate_async", {}, threshold, strategy, settings
        buffer = R3ReplayBufferAsync(*kind, poll_interval=0.02, refill_fn=refill)
        stall = StallWatch(stall_timeout_s, "stall_timeout_s")
        buffer.attach(replayer(history, **replay), stall, lambda: None, reflection_cap=cap)
        return buffer

    return make


@pytest.fixture(scope="module")
def tokenizer():
    """Byte-level BPE with a few merges, so that text on both sides of a cut can join into one token."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    specials = ["<|end|>", "<|user|>", "<|system|>", "<|assistant|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=specials, initial_alphabet=alphabet)
    bpe.train_from_iterator(["the answer is then 12 and the sum of the two [...] is the answer"] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>", chat_template=CHAT_TEMPLATE)


@pytest.fixture(scope="module")
def shipped() -> DictConfig:
    """recipe/r3/config/r3.yaml over verl's ppo_trainer, composed as the command does it."""
    with initialize_config_dir(str(Path(r3_config.__file__).parent), version_base=None):
        return compose("r3_trainer")


@pytest.fixture
def with_settings(shipped):
    """The shipped configuration with some keys set."""

    def build(settings: dict) -> DictConfig:
        config = part(shipped)
        with open_dict(config):
            for key, value in settings.items():
                OmegaConf.update(config, key, value, force_add=True)
        return config

    return build
