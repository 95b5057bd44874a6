"""`r3 states`: what a person sees of the states that a run starts again from."""

import sqlite3
import sys

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from r3_ext.rrl.states import main
from recipe.common.store.codec import tokenizer_fingerprint
from recipe.rrl.states import FAILED, RIGHT, State, StateBuffer


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run folder with three states, of which one was tried; and the model that it names."""
    monkeypatch.setenv("COLUMNS", "200")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"zero": 0, "one": 1, "two": 2, "?": 3}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    tokenizer.save_pretrained(tmp_path / "model")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(f"actor_rollout_ref: {{model: {{path: {tmp_path}/model}}}}\n")
    buffer = StateBuffer(str(run / "states.sqlite"), 4, 9)
    buffer.restore(0, {"tokenizer": tokenizer_fingerprint(tokenizer)})
    kept = {"length": 9, "step": 1}
    values = {"value": 0.5, "start_value": 0.25}
    buffer.add([State("a", np.array([1, 2], np.int32), FAILED, **kept, **values)], 1)
    buffer.add([State("b\x1b[31m", np.array(ids, np.int32), RIGHT, **kept) for ids in ([2], [2, 2])], 1)
    buffer.tried([(1, 4, 1)], 2)
    buffer.close()
    return run


def shown(capsys, *argv):
    assert main([str(value) for value in argv]) == 0
    return capsys.readouterr().out


def test_it_shows_origins_tries_gain_and_the_text(folder, capsys):
    out = shown(capsys, folder)
    lines = [line.split() for line in out.splitlines()]
    assert ["failed", "1", "1", "2", "4", "25.0%", "0.25"] in lines
    assert ["right", "2", "1", "2", "0", "-", "0"] in lines
    assert ["1", "a", "failed", *"2 of 9".split(), "1", "0.25", "-", *"1 of 4".split(), "one", "two"] in lines


def test_it_reads_while_a_run_writes(folder, capsys):
    buffer = StateBuffer(str(folder / "states.sqlite"), 4, 9)
    assert "one two" in shown(capsys, folder / "states.sqlite", "--tokenizer", folder.parent / "model")
    buffer.close()


def test_what_comes_from_somebody_else_cannot_steer_the_terminal(folder, capsys):
    assert "\x1b" not in shown(capsys, folder)


def test_one_problem_and_so_many(folder, capsys):
    assert "right" not in shown(capsys, folder, "--query", "a").split("ends in")[1]
    assert len(shown(capsys, folder, "--limit", "1").split("ends in")[1].strip().splitlines()) == 1


def test_what_cannot_be_read_is_told_in_a_sentence(folder, capsys, tmp_path):
    assert main([str(tmp_path)]) == 2
    assert "name a state buffer or a run folder" in capsys.readouterr().err
    with sqlite3.connect(folder / "states.sqlite") as db:
        db.execute("UPDATE states SET length = 8 WHERE id = 1")
    db.close()
    assert main([str(folder)]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_settings_and_a_tokenizer_that_cannot_be_read_are_told_and_another_may_be_named(folder, capsys):
    (folder / "config.yaml").write_text("{")
    assert main([str(folder)]) == 2
    assert "name the folder of its model with --tokenizer" in capsys.readouterr().err
    assert "one two" in shown(capsys, folder, "--tokenizer", folder.parent / "model")
    (folder.parent / "model" / "tokenizer.json").write_text("{")
    assert main([str(folder), "--tokenizer", str(folder.parent / "model")]) == 2
    assert "no usable tokenizer" in capsys.readouterr().err


def test_texts_of_another_tokenizer_are_refused(folder, capsys):
    with sqlite3.connect(folder / "states.sqlite") as db:
        db.execute("UPDATE meta SET value = 'another' WHERE key = 'tokenizer'")
    db.close()
    assert main([str(folder)]) == 2
    assert "is of another tokenizer" in capsys.readouterr().err


def test_the_command_is_there(monkeypatch, capsys):
    from r3_ext import cli

    monkeypatch.setattr(sys, "argv", ["r3", "states", "--help"])
    with pytest.raises(SystemExit):
        cli.main(["states", "--help"])
    assert "starts again" in capsys.readouterr().out
