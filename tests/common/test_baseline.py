"""What a measured trainer makes of the answers to a validation, whatever reward manager judged them."""

import math
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from tagged import PADDING, RIGHT, make_meta, make_tag

from recipe.common.rows import RESTART
from recipe.common.trainer.measured import LedgerMixin, MeasuredMixin


class Verls:
    """verl's part: figures of its own, which stay."""

    def _val_metrics_update(self, sources, uids, columns, turns, expected_acc_counts=None):
        self.resampled = set(columns)
        return {"val-core/mine/reward/mean@1": 0.5}


class Measured(MeasuredMixin, Verls):
    def __init__(self, correct_from: float = 1.0, step: int = 3):
        self.config = OmegaConf.create(
            {"reward": {"reward_kwargs": {"correct_from": correct_from}}, "data": {"max_response_length": 8}}
        )
        self.tokenizer, self.global_steps = SimpleNamespace(eos_token_id=0), step
        self.val_dataloader = SimpleNamespace(by_uid=lambda uids: {uid: uid for uid in uids})  # all different

    def figures(self, **columns) -> dict:
        rows = len(columns["reward"])
        uids = [str(number) for number in range(rows)]
        expected = {("mine", uid): 1 for uid in uids}
        return self._val_metrics_update(["mine"] * rows, uids, columns, [2] * rows, expected_acc_counts=expected)


def test_own_managers_columns_give_all_figures():
    found = Measured().figures(
        reward=[1.5, 0.0], acc=[1.0, 0.0], length_bonus=[0.5, 0.0], truncated=[0.0, 1.0], response_length=[4, 8]
    )
    assert found["val-core/mine/reward/mean@1"] == 0.5
    assert (found["val/mine/pass@1"], found["val/mine/truncated"], found["val/mine/tokens/all"]) == (0.5, 0.5, 6)


def test_verl_resamples_only_what_has_no_figure_yet():
    measured = Measured()
    own = {"acc": [1.0], "length_bonus": [0.5], "truncated": [0.0], "response_length": [4], "reward_error": [0.0]}
    measured.figures(reward=[1.5], score=[1.0], **own)
    assert measured.resampled == {"reward", "acc", "score"}
    measured.figures(reward=[1.0], truncated=[0.0], depth=[3])  # of another manager's nothing is known
    assert measured.resampled == {"reward", "truncated", "depth"}


@pytest.mark.parametrize(
    "columns",
    [
        {"reward": [6.5, 2.0, 6.0], "acc": [6.5, 2.0, 6.0]},  # naive, of a function that returns numbers
        {"reward": [6.5, 2.0, 6.0], "score": [6.5, 2.0, 6.0], "depth": [None, 3, "x"]},  # dicts without a verdict
        {"reward": [0.0, 9.0, 0.0], "score": [0.0, 9.0, 0.0], "acc": [True, False, 1.0]},  # with one
        {"reward": [6.5, 2.0, 6.0]},  # of one's own, a score alone
        {"reward": [6.5, 2.0, 6.0], "response_length": ["6 words", None, "1 word"]},
    ],
)
def test_verls_managers_columns_are_read_as_in_training(columns):
    found = Measured(correct_from=6.0).figures(**columns)
    assert found["val/mine/pass@1"] == pytest.approx(2 / 3)
    assert not any("tokens" in key or "truncated" in key for key in found), "nobody told"


def test_a_cut_that_another_manager_tells_is_read_as_in_training():
    found = Measured().figures(reward=[1.0, 0.0], truncated=["", "yes"])
    assert (found["val/mine/pass@1"], found["val/mine/truncated"]) == (0.5, 0.5)


def test_answers_that_never_came_are_failed_ones():
    nothing = Measured()._val_metrics_update([], [], {}, [], expected_acc_counts={("mine", "0"): 1})
    assert nothing == {"val-core/mine/reward/mean@1": 0.5}
    expected = {("mine", uid): 1 for uid in "ab"}
    found = Measured()._val_metrics_update(["mine"], ["a"], {"reward": [1.0]}, [2], expected_acc_counts=expected)
    assert (found["val/mine/pass@1"], found["val/mine/failed"], found["val/mine/problems"]) == (0.5, 1, 2)


def test_a_function_that_fails_is_counted_and_one_that_always_fails_ends_a_run_that_begins():
    columns = {"reward": [1.0, 0.0], "acc": [1.0, 0.0], "score": [1.0, 0.0], "length_bonus": [0.0, 0.0]}
    found = Measured().figures(**columns, reward_error=[0.0, 1.0])
    assert found["val/reward_errors"] == 1 and found["val/mine/pass@1"] == 0.5
    assert "val/reward_errors" not in Measured().figures(**columns, reward_error=[0.0, 0.0])
    assert Measured().figures(reward=[math.nan, 1.0], score=[math.nan, 1.0])["val/reward_errors"] == 1
    with pytest.raises(RuntimeError, match=r"no answer got a score, to data of mine; .*VAL_DATA"):
        Measured(step=0).figures(**columns, reward_error=[1.0, 1.0])
    assert Measured(step=3).figures(**columns, reward_error=[1.0, 1.0])["val/reward_errors"] == 2, "an outage"


def test_what_is_no_verdict_ends_the_run():
    with pytest.raises(ValueError, match="acc=nan"):
        Measured().figures(reward=[1.0], score=[1.0], acc=[math.nan])


@pytest.mark.parametrize(
    "plain, described",
    [({"plain": [RIGHT]}, ["plain_0_0", "pad_0_0"]), ({}, ["restart-u_0_0", "pad_0_0"])],
)
def test_verls_own_figures_are_of_answers_from_the_start_where_a_step_has_any(plain, described):
    seen = []

    class Trainer:
        def _compute_metrics(self, batch, metrics, *args):
            seen.extend(batch.keys)
            metrics |= {"perf/total_num_tokens": sum(tag["seq_len"] for tag in batch.tags), "perf/throughput": 1.0}

    class Ledger(LedgerMixin, Trainer):
        def _described(self, batch):
            return batch.select_keys([key for key in batch.keys if not key.startswith("pad")])

    restart = make_tag(True, variant=RESTART, prefix_len=4)
    batch = make_meta({**plain, "restart-u": [restart], "pad": [PADDING]})
    for tag in batch.tags:
        tag["seq_len"] = 30
    metrics = {}
    Ledger()._compute_metrics(batch, metrics, {}, 1, 0)
    assert seen == described
    assert metrics["perf/total_num_tokens"] == 30 * len(batch.keys) and metrics["restart/tokens"] == 6
