"""Tells uv, which reads no configuration of pip, what pip is configured with: shell code for `install.sh` to evaluate.

PYTHON examples/uv_options.py      prints uv_options=(...), and export lines for what uv takes from the environment
"""

import ast
import os
import shlex
import subprocess
import sys

OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--extra-index-url",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
VARIABLES = {
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}
SECTIONS = ("global.", "install.", ":env:.")
"""In the order in which the later one counts."""


def read_settings(listing: str) -> dict[str, str]:
    """`pip config list`, lines such as global.find-links='/opt/wheels'."""
    found = {}
    for section in SECTIONS:
        for line in listing.splitlines():
            key, _, value = line.partition("=")
            if key.startswith(section):
                found[key.removeprefix(section)] = ast.literal_eval(value)
    return found


def uv_code(settings: dict[str, str], environment: dict[str, str]) -> str:
    """Shell code; several values of one setting stand in one line or on several."""
    options = [
        part for name, option in OPTIONS.items() for value in settings.get(name, "").split() for part in (option, value)
    ]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        options.append("--no-index")
    lines = [f"uv_options=({shlex.join(options)})"]
    for name, variable in VARIABLES.items():
        if name in settings and variable not in environment:
            lines.append(f"export {variable}={shlex.quote(settings[name])}")
    return "\n".join(lines)


if __name__ == "__main__":
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    print(uv_code(read_settings(listing.stdout), dict(os.environ)))
