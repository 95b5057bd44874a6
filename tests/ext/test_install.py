"""What pip is configured with reaches uv, and what is asked for is what is imported."""

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
WITH_TORCH = {"ray", "tensordict", "tokenizers", "torch", "transfer_queue", "transformers", "verl", "vllm", "zmq"}
OF_GAMES = {"textworld", "alfworld"}
"""What the extras cpu and gpu bring, and what games does; tokenizers comes with transformers, zmq with vLLM."""
BROUGHT = {"markupsafe": "jinja2", "mpmath": "math-verify", "sympy": "math-verify"}
"""What comes with a dependency, in the version that it needs."""


@pytest.fixture(scope="module")
def uv_options():
    spec = importlib.util.spec_from_file_location("uv_options", EXAMPLES / "uv_options.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_environment_counts_more_than_the_section_of_install_and_that_more_than_the_global_one(uv_options):
    listing = (
        ":env:.find-links='/env'\ninstall.find-links='/install'\nglobal.find-links='/global'\n"
        "install.index-url='https://install'\nglobal.index-url='https://global'\nfreeze.timeout='1'\n"
    )
    assert uv_options.read_settings(listing) == {"find-links": "/env", "index-url": "https://install"}


def test_every_setting_arrives_as_an_argument_of_its_own(uv_options):
    settings = {
        "extra-index-url": "\nhttps://one\nhttps://two?a=b&c",
        "find-links": "/a /b'c",
        "no-index": "true",
        "cert": "/my certs/ca.crt",
        "default-timeout": "180",
    }
    code = uv_options.uv_code(settings, {"UV_HTTP_TIMEOUT": "7"})
    show = 'printf "%s\\n" "${uv_options[@]}" "$SSL_CERT_FILE" "${UV_HTTP_TIMEOUT:-none}"'
    told = subprocess.run(["bash", "-uc", f"{code}\n{show}"], capture_output=True, text=True, check=True, env={})
    assert told.stdout.splitlines() == [
        *("--extra-index-url", "https://one", "--extra-index-url", "https://two?a=b&c"),
        *("--find-links", "/a", "--find-links", "/b'c", "--no-index", "/my certs/ca.crt", "none"),
    ]


def test_nothing_configured_is_no_option(uv_options):
    assert uv_options.uv_code({}, {}) == "uv_options=()"


def test_pips_own_listing_is_read(uv_options, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/my wheels")
    done = subprocess.run(
        [uv_options.sys.executable, EXAMPLES / "uv_options.py"], capture_output=True, text=True, check=True
    )
    first = done.stdout.splitlines()[0]
    assert ["--find-links", "/my"] == shlex.split(first.removeprefix("uv_options=(").removesuffix(")"))[-4:-2]


def imported() -> set[str]:
    """Top-level modules that the packages import, inside functions too, without Python's and their own."""
    names = set()
    for file in (*(ROOT / "recipe").rglob("*.py"), *(ROOT / "r3_ext").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"recipe", "r3_ext"}


def names_of(requirements: list[str]) -> set[str]:
    return {re.sub(r"[-_.]+", "-", Requirement(text).name).lower() for text in requirements}


def test_the_dependencies_are_what_the_packages_import_and_no_more():
    asked = names_of(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    providers = metadata.packages_distributions()
    found = {BROUGHT.get(name, name) for name in imported() - WITH_TORCH - OF_GAMES}
    needed = {name: names_of(providers.get(name, [name])) for name in found}
    assert not {name for name, among in needed.items() if not among & asked}
    assert not asked - set().union(*needed.values())


def test_install_sh_finds_the_cpus_torch_among_the_pins():
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cpu"]
    [expression] = re.findall(r"sed -n ('.*') \"\$root/pyproject.toml\"", (EXAMPLES / "install.sh").read_text())
    found = subprocess.run(
        ["sed", "-n", *shlex.split(expression), ROOT / "pyproject.toml"], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [pin for pin in pins if pin.startswith("torch==")]
