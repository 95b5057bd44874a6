"""What pip is configured with reaches uv."""

import importlib.util
import shlex
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


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
