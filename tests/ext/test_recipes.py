"""A recipe is a folder under recipe/ and one entry in the table: a toy one needs nothing else of the shell."""

import json
import subprocess
import sys
import textwrap

import pytest
from omegaconf import OmegaConf

from r3_ext import recipes
from r3_ext.doctor import command as doctor
from r3_ext.doctor.settings import check_values
from r3_ext.recipes import BASELINE, R3, Recipe, recipe_of, recipe_of_trainer
from r3_ext.run import changes, train
from r3_ext.run import command as launch
from r3_ext.run.start import settle
from r3_ext.settings.compose import compose_config
from recipe.common.config.verl_rules import MODULES
from recipe.common.modes import COLOCATE_ASYNC, MODES, trainer_name

TOY = Recipe(
    name="toy",
    title="the toy",
    entry="recipe.toy.main_toy",
    config="recipe.toy.config",
    base="toy_trainer",
    methods=("toy", "toy_slow"),
    modules=("recipe.toy.toy_trainer",),
    node="algorithm.toy",
    validator="recipe.toy.rules:validate",
    rules="recipe.toy.rules:rules",
    describer="recipe.toy.rules:describe",
    files={"algorithm.toy.notes": "notes.txt"},
    free=("algorithm.toy.says",),
)
FOLDER = {
    "config/toy_trainer.yaml": """
        hydra:
          searchpath: [pkg://verl.trainer.config, pkg://recipe.common.config]
        defaults: [ppo_trainer, common, _self_]
        algorithm:
          adv_estimator: grpo
          toy: {strength: 1.0, says: hello, notes: null}
        trainer:
          v1:
            trainer_mode: toy
        ray_kwargs:
          ray_init:
            runtime_env:
              env_vars:
                VERL_USE_EXTERNAL_MODULES: recipe.toy.toy_trainer
    """,
    "config/method/toy.yaml": "# @package _global_\n",
    "config/method/toy_slow.yaml": "# @package _global_\nalgorithm: {toy: {strength: 0.5}}\n",
    "main_toy.py": """
        import json, sys
        import hydra
        from omegaconf import OmegaConf

        @hydra.main(config_path="config", config_name="toy_trainer", version_base=None)
        def main(config):
            print("TOY", json.dumps(OmegaConf.to_container(config.algorithm.toy, resolve=True)))

        main()
    """,
    "toy_trainer.py": "",
    "rules.py": """
        from recipe.common.checks import Broken

        def rules(config):
            strength = config.algorithm.toy.strength
            if not 0 < strength <= 1:
                yield Broken(f"algorithm.toy.strength must be in (0, 1], got {strength}")

        def validate(config):
            for broken in rules(config):
                raise ValueError(broken.told)
            return config.algorithm.toy

        def describe(toy):
            return [f"toy: strength {toy.strength}"]
    """,
}


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The toy recipe, on the path of this process and of those that it starts."""
    for name, text in FOLDER.items():
        file = tmp_path / "path" / "recipe" / "toy" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "path"), *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"), prepend=":")
    monkeypatch.setitem(recipes.RECIPES, "toy", TOY)
    for name in (*changes.SOURCES, "R3_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    yield TOY
    for name in [name for name in sys.modules if name.startswith("recipe.toy")]:
        del sys.modules[name]


def start_of(*argv: str):
    return settle(launch.parse(list(argv), False), False, lambda: "embedded")


def overrides_of(start, *given: str) -> list[str]:
    return start.compose([*train.run_overrides(start.folder, start.method, False), *given])


@pytest.mark.parametrize("mode", MODES)
def test_a_run_settles_composes_and_passes_the_values(toy, mode):
    start = start_of("--method", "toy_slow", "--mode", mode, "algorithm.toy.says=hi")
    config = compose_config(overrides_of(start))
    trainer = trainer_name("toy", mode)
    assert config.trainer.v1.trainer_mode == trainer and recipe_of_trainer(trainer) is toy
    assert start.folder.parent.name == f"{trainer_name('toy_slow', mode)}_embedded"
    assert config.algorithm.toy == {"strength": 0.5, "says": "hi", "notes": str(start.folder / "notes.txt")}
    assert check_values(config) == [] and toy.describe(config) == ["toy: strength 0.5"]
    assert train.is_stoppable(config)
    assert OmegaConf.select(config, MODULES) == "r3_ext.cpu.plugin,recipe.toy.toy_trainer"
    assert "r3" not in config.algorithm and config.reward.reward_manager.name == "R3RewardManager"


def test_another_kind_of_value_is_refused_by_what_its_own_files_hold(toy):
    config = compose_config(overrides_of(start_of("--method", "toy", "algorithm.toy.strength=much")))
    assert [finding.found for finding in check_values(config)] == [
        "algorithm.toy.strength must be a number, got 'much'"
    ]


def test_the_training_command_is_its_own_and_composes_what_was_checked(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("R3_PRIVATE", "0")
    start = start_of("--method", "toy_slow", "--mode", COLOCATE_ASYNC)
    overrides = overrides_of(start)
    start.folder.mkdir(parents=True)
    command = train.command_of(start, overrides, compose_config(overrides), sys.executable)
    assert command[1:3] == ["-m", "recipe.toy.main_toy"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = next((line for line in done.stdout.splitlines() if line.startswith("TOY ")), done.stderr[-2000:])
    assert json.loads(told.removeprefix("TOY ")) == {
        "strength": 0.5,
        "says": "hello",
        "notes": str(start.folder / "notes.txt"),
    }
    assert (start.folder / "config.yaml").exists()


def test_the_doctor_composes_it_and_asks_its_rules(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setattr(doctor, "diagnose", lambda config: doctor.check_values(config) or doctor.check_config(config))
    assert doctor.passed(doctor.examine("embedded", "toy", [], tmp_path))
    [finding] = doctor.examine("embedded", "toy", ["algorithm.toy.strength=2"], tmp_path)
    assert finding.found == "algorithm.toy.strength must be in (0, 1], got 2"


def test_what_may_change_in_mid_run_is_its_own_too(toy):
    found = {"algorithm.toy.says": ("a", "b"), "algorithm.toy.strength": (1.0, 0.5)}
    assert changes.bound(found) == {"algorithm.toy.strength": (1.0, 0.5)}


def test_help_names_its_methods(toy, capsys):
    with pytest.raises(SystemExit):
        launch.parse(["--help"], False)
    names = "{dapo,gigpo,grpo,grpo_extra,hgpo,hgpo_release,ngrpo,ppo,r3,r3_paper,rl_zvp,rrl,toy,toy_slow}"
    assert names in capsys.readouterr().out


def test_a_method_that_nobody_has_is_told_with_those_that_there_are(tmp_path):
    known = "dapo, gigpo, grpo, grpo_extra, hgpo, hgpo_release, ngrpo, ppo, r3, r3_paper, rl_zvp, rrl"
    with pytest.raises(ValueError, match=f"--method must be one of {known}, got 'nobody'"):
        recipe_of("nobody")
    [finding] = doctor.examine("embedded", "nobody", [], tmp_path)
    assert f"--method must be one of {known}, got 'nobody'" in finding.found


@pytest.mark.parametrize("recipe", [BASELINE, R3])
def test_the_entries_name_what_there_is(recipe):
    files = {path.stem for path in (recipe.folder / "method").glob("*.yaml")}
    assert files == set(recipe.methods) and (recipe.folder / f"{recipe.base}.yaml").is_file()
    for method in recipe.methods:
        config = compose_config([f"+method={method}"])
        assert recipe_of_trainer(config.trainer.v1.trainer_mode) is recipe_of(method) is recipe
        assert OmegaConf.select(config, MODULES) == ",".join(recipe.modules)
        assert (recipe.node is None) == ("r3" not in config.algorithm)
        recipe.validate(config)


def test_the_section_of_another_recipe_in_an_old_config_is_no_change():
    new = {"data.seed": 0, "trainer.v1.trainer_mode": "baseline"}
    assert changes.between(new | {"algorithm.r3.replay.k": 1}, new) == {}
    of_r3 = new | {"algorithm.r3.replay.k": 2}
    assert changes.between(new | {"algorithm.r3.replay.k": 1}, of_r3) == {"algorithm.r3.replay.k": (1, 2)}


ENGINES = """
import importlib, os, sys
from verl.workers.engine import EngineRegistry
for modules in sys.argv[1:]:
    if not os.fork():  # what one recipe registers is not there for the next
        for name in modules.split(","):
            importlib.import_module(name)
        print(EngineRegistry._engines["language_model"]["fsdp2"]["cuda", "nvidia"].__module__, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, modules
"""


@pytest.mark.slow
def test_every_recipe_trains_with_the_engine_that_takes_untied_embeddings():
    """A recipe and its baselines are compared: they need the same engine."""
    modules = [",".join(recipe.modules) for recipe in recipes.RECIPES.values()]
    done = subprocess.run([sys.executable, "-c", ENGINES, *modules], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-len(modules) :] == ["recipe.common.trainer.engine"] * len(modules)
