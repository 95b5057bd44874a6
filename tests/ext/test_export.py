"""A recipe goes into a checkout of verl-recipe, and works there with nothing of this repository beside it."""

import os
import subprocess
import sys

import pytest

from r3_ext.export import lay as export

RULES = """
[tool.ruff]
line-length = 120

[tool.ruff.lint]
isort = {known-first-party = ["verl"]}
select = ["E", "F", "UP", "B", "I", "G"]
ignore = ["F405", "F403", "E731", "B007", "UP032", "G004", "UP045", "UP035"]
"""
"""What verl-recipe's CI asks for."""

HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("r3_ext", "tests") or name.startswith("recipe.common"):
            raise ModuleNotFoundError(f"{name} is hidden", name=name)

sys.meta_path.insert(0, Hidden())
"""
"""Python runs it at every start, of a child process too: an installation of this repository is out of reach."""

IMPORT_ALL = """
import importlib, runpy, sys
from pathlib import Path

recipe, name = Path(sys.argv[1]), sys.argv[2]
for file in sorted(recipe.glob(f"{name}/**/*.py")):
    if "tests" not in file.parts:
        module = ".".join(["recipe", *file.relative_to(recipe).with_suffix("").parts]).removesuffix(".__init__")
        try:
            assert Path(importlib.import_module(module).__file__) == file, module
        except ModuleNotFoundError as error:
            assert error.name == "alfworld", name  # an extra that takes minutes to compile
foreign = [name for name in sys.modules if name.split(".")[0] == "r3_ext" or name.startswith("recipe.common")]
assert not foreign, foreign
sys.argv[1:] = ["--cfg", "job"]
runpy.run_module(f"recipe.{name}.main_{name}", run_name="__main__", alter_sys=True)
"""
"""All modules in one process, then the recipe's command."""


RECIPES = ("r3", "hgpo", "rrl")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """verl-recipe as a submodule of verl: the folder `recipe`, with lint rules, another recipe, and the export."""
    recipe = make_checkout(tmp_path_factory.mktemp("verl"))
    (recipe.parent / "sitecustomize.py").write_text(HIDE)
    for name in RECIPES:
        assert export.main([name, str(recipe)]) == 0
    return recipe


def make_checkout(folder):
    (folder / "recipe" / "dapo").mkdir(parents=True)
    (folder / "recipe" / "dapo" / "REQUIRED_VERL.txt").touch()
    (folder / "recipe" / "pyproject.toml").write_text(RULES)
    return folder / "recipe"


def python(checkout, *args: str, timeout_s: float = 300) -> subprocess.CompletedProcess:
    """Python in verl's folder, where only the export is called recipe.r3."""
    environment = {**os.environ, "PYTHONPATH": str(checkout.parent), "VERL_USE_EXTERNAL_MODULES": ""}
    command = [sys.executable, *args]
    done = subprocess.run(
        command, cwd=checkout.parent, env=environment, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done


# what goes, in a small repository


@pytest.fixture
def repository(tmp_path):
    """recipe/toy reaches `used` by an import, `late` by one inside a function, `named` by YAML, `deep` over `used`."""
    files = {
        "recipe/common/__init__.py": "",
        "recipe/common/used.py": "from recipe.common.part import deep",
        "recipe/common/part/__init__.py": "",
        "recipe/common/part/deep.py": "",
        "recipe/common/late.py": "",
        "recipe/common/named.py": "",
        "recipe/common/other.py": "",
        "recipe/common/config/__init__.py": "",
        "recipe/common/config/rules.py": "",
        "recipe/common/config/common.yaml": "manager: {path: pkg://recipe.common.named}",
        "recipe/common/config/baseline.yaml": "modules: recipe.common.other",
        "recipe/toy/__init__.py": "",
        "recipe/toy/main.py": "import recipe.common.used\ndef run():\n    from recipe.common import late",
        "recipe/toy/config/toy_rules.py": "from recipe.common.config import rules",
        "recipe/toy/config/toy.yaml": "# not recipe.common.other\ndefaults: [ppo_trainer, common, _self_]",
        "tests/conftest.py": "",
        "tests/common/helper.py": "",
        "tests/common/test_used.py": "import helper, recipe.common.used",
        "tests/common/test_other.py": "import recipe.common.other",
        "tests/toy/test_main.py": "import recipe.toy.main, helper",
        "tests/toy/test_shell.py": "def test():\n    import r3_ext.cli",
        "r3_ext/__init__.py": "",
        "r3_ext/cli.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_a_recipe_reaches_goes_with_it_and_tests_that_need_no_more(repository):
    assert {str(place) for place in export.plan("toy", repository).values()} == {
        *("__init__.py", "main.py", "config/toy.yaml", "config/toy_rules.py", "config/common.yaml", "config/rules.py"),
        *("common/__init__.py", "common/used.py", "common/part/__init__.py", "common/part/deep.py"),
        *("common/late.py", "common/named.py"),
        *("tests/conftest.py", "tests/helper.py", "tests/test_used.py", "tests/toy/test_main.py"),
    }


@pytest.mark.parametrize("line", ["import r3_ext.cli", "from recipe.other import x"])
def test_a_recipe_that_needs_the_shell_or_another_recipe_is_refused(repository, line):
    (repository / "recipe" / "other").mkdir()
    (repository / "recipe" / "other" / "__init__.py").touch()
    (repository / "recipe" / "toy" / "main.py").write_text(line)
    with pytest.raises(ValueError, match="must stand on recipe/common and verl alone"):
        export.plan("toy", repository)


def test_one_of_two_settings_files_of_one_name_is_not_lost(repository):
    (repository / "recipe" / "toy" / "config" / "rules.py").touch()
    with pytest.raises(ValueError, match="hold files of one name: rename one"):
        export.plan("toy", repository)


@pytest.mark.parametrize(
    ("suffix", "here", "there"),
    [
        (".py", "from recipe.common.rows import Row", "from recipe.toy.common.rows import Row"),
        (".py", "from recipe.common import rows", "from recipe.toy.common import rows"),
        (".yaml", "path: pkg://recipe.common.reward", "path: pkg://recipe.toy.common.reward"),
        (".yaml", "searchpath:\n  - pkg://verl\n  - pkg://recipe.common.config", "searchpath:\n  - pkg://verl"),
        (".md", "pkg://recipe.toy.config and pkg://recipe.common.config", "pkg://recipe.toy.config"),
        (".md", "see recipe/common/config/common.yaml", "see recipe/toy/config/common.yaml"),
        (".md", "see `recipe/common/rows.py`, `tests/common/x.py`", "see `recipe/toy/common/rows.py`, `tests/x.py`"),
        (".md", "One.\n<!-- here only -->\nTwo.\n<!-- /here only -->\nThree.", "One.\nThree."),
        (".py", "recipe.commonplace", "recipe.commonplace"),
    ],
)
def test_names_are_those_of_the_export(suffix, here, there):
    assert export.rewritten(here, "toy", suffix) == there


def test_a_mark_that_does_not_close_is_refused():
    with pytest.raises(ValueError, match="must come in pairs"):
        export.rewritten("<!-- here only -->\nTwo.", "toy", ".md")


def test_lines_that_name_what_stays_here_are_told(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_there.py").touch()
    text = "`r3 run` starts it.\nSee tests/test_there.py.\nSee tests/ext/test_run.py.\nR^3 runs."
    assert export.left_behind(text, tmp_path) == ["1: `r3 run` starts it.", "3: See tests/ext/test_run.py."]


# where it may go


def test_a_folder_that_is_no_checkout_of_verl_recipe_is_refused(tmp_path, capsys):
    assert export.main(["r3", str(tmp_path)]) == 2
    assert "git clone https://github.com/verl-project/verl-recipe.git" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_another_recipe_of_that_name_is_left_alone_and_an_earlier_export_is_replaced(tmp_path):
    recipe = make_checkout(tmp_path)
    (recipe / "r3").mkdir()
    (recipe / "r3" / "main.py").touch()
    with pytest.raises(ValueError, match="move it away, or delete it"):
        export.check_destination(recipe, "r3")
    (recipe / "r3" / "main.py").unlink()
    (recipe / "r3").rmdir()
    export.write("r3", export.plan("r3"), recipe)
    (recipe / "r3" / "gone.py").touch()
    export.check_destination(recipe, "r3")
    export.write("r3", export.plan("r3"), recipe)
    assert not (recipe / "r3" / "gone.py").exists() and (recipe / "r3" / "main_r3.py").exists()


# each recipe there


def test_verl_recipes_rules_find_nothing_and_no_module_is_missed(checkout):
    ruff = [sys.executable, "-m", "ruff"]
    assert subprocess.run([*ruff, "check", "--no-cache"], cwd=checkout).returncode == 0
    assert subprocess.run([*ruff, "format", "--check", "--no-cache"], cwd=checkout).returncode == 0
    texts = [file.read_text() for file in checkout.rglob("*.*") if file.suffix in export.SUFFIXES]
    assert not any("recipe.common" in text or "recipe/common" in text for text in texts)
    assert all(file.read_text().startswith("# Copyright") for file in checkout.rglob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_module_is_the_exports_and_its_command_composes_with_this_repository_out_of_reach(checkout, name):
    composes(checkout, name, "-c", IMPORT_ALL, str(checkout), name)


@pytest.mark.slow
def test_verls_command_composes_it_too(checkout):
    config = f"--config-path={checkout}/r3/config", "--config-name=r3_trainer"
    composes(checkout, "r3", "-m", "verl.trainer.main_ppo", *config, "--cfg", "job")


def composes(checkout, name, *command):
    job = python(checkout, *command).stdout
    assert f"trainer_mode: {name}" in job and f"pkg://recipe.{name}.common.reward.manager" in job


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("r3", "losses or mini_batches or ranking or resume or outcome"),
        ("hgpo", "core_algos or prompts or interface"),
        ("rrl", "collect or restarts or step_rows or resume"),
    ],
)
def test_its_quick_tests_pass_there(checkout, name, chosen):
    """All are collected, where an error ends it, and some files run: all of them take minutes."""
    quick = [f"recipe/{name}/tests", "-m", "not slow", "-p", "no:cacheprovider", "-k", chosen]
    done = python(checkout, "-m", "pytest", "-q", *quick, timeout_s=600)
    assert " passed" in done.stdout and " failed" not in done.stdout
