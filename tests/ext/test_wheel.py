"""The project works from its wheel: nothing of it needs the checkout, and no folder of the user's is a special one."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("recipe", "r3_ext", "pyproject.toml", "setup.py", "README.md", "LICENSE")

pytestmark = pytest.mark.slow


def plain() -> dict[str, str]:
    """This environment without what leads to the checkout or chooses for the user."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "R3_PROFILE")}


class Installed(NamedTuple):
    """An environment that holds the wheel, and a folder that is not the checkout."""

    bin: Path
    packages: Path
    elsewhere: Path

    def run(self, *command: str) -> subprocess.CompletedProcess:
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        env = plain() | {"PATH": path, "XDG_CACHE_HOME": str(self.elsewhere / "cache")}
        return subprocess.run(command, cwd=self.elsewhere, env=env, capture_output=True, text=True, check=False)

    def python(self, code: str) -> list[str]:
        """The lines that the code prints."""
        done = self.run("python", "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--no-input"]
    offline = ["--no-deps", "--no-index"]
    subprocess.run([*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", folder, source], check=True)
    venv.create(folder / "venv")
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    python = folder / "venv" / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", *offline, *folder.glob("*.whl")], check=True, env=plain())
    # What the project needs comes from this environment, behind the wheel: a path in a .pth file is appended, and the
    # .pth files of that folder, this project's editable install among them, are not read.
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    return Installed(python.parent, packages, elsewhere)


def test_it_is_the_wheel_that_is_imported(installed):
    places = installed.python("import recipe.r3, recipe.common, r3_ext; print(*recipe.r3.__path__, r3_ext.__file__)")
    assert places == [f"{installed.packages}/recipe/r3 {installed.packages}/r3_ext/__init__.py"]


def test_it_says_its_version(installed):
    said = installed.run("r3", "--version")
    assert said.returncode == 0 and said.stdout.split()[0] == "r3-recipe"
    assert f'version = "{said.stdout.split()[1]}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("command", ["--help", "run --profile embedded --help", "probe --help", "study --help"])
def test_help(installed, command):
    done = installed.run("r3", *command.split())
    assert done.returncode == 0 and done.stdout.startswith("usage: r3"), done.stderr


def test_every_profile_and_every_method_compose_as_in_the_checkout(installed):
    """Also, no data file of the packages is left out of the wheel."""
    code = (
        "from r3_ext.settings.compose import choices, compose_config\n"
        "pairs = [(profile, 'r3') for profile in choices('profile')]\n"
        "pairs += [('embedded', method) for method in choices('method')]\n"
        "for profile, method in pairs:\n"
        "    compose_config(['+profile=' + profile, '+method=' + method])\n"
        "    print(profile, method)"
    )
    here = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert installed.python(code) == here.splitlines() != []


def test_the_doctor_finds_what_it_finds_in_the_checkout(installed):
    doctor = ("r3_ext.cli", "doctor", "--profile", "embedded")
    here = subprocess.run([sys.executable, "-m", *doctor], cwd=ROOT, capture_output=True, text=True, check=False)
    there = installed.run("python", "-m", *doctor)
    assert there.returncode == here.returncode, there.stdout + there.stderr
    assert there.stdout.splitlines()[-1] == here.stdout.splitlines()[-1]


def test_the_cache_is_the_users_and_git_is_not_asked_about_a_repository_around_the_environment(installed):
    subprocess.run(["git", "init", "--quiet", installed.packages.parents[2]], check=True)
    said = installed.python(
        "from r3_ext.settings.compose import CACHE\n"
        "from r3_ext.run.environment import environment\n"
        "made = environment([])\n"
        "print(CACHE, made['git']['changes'], made['versions']['r3-recipe'], sep='\\n')"
    )
    version = installed.run("r3", "--version").stdout.split()[1]
    assert said == [str(installed.elsewhere / "cache" / "r3-recipe"), "None", version]


def test_a_checkout_keeps_its_cache_in_it():
    code = "from r3_ext.settings.compose import CACHE; print(CACHE)"
    here = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert here.strip() == str(ROOT / ".cache")
