"""The texts name what is there: files, chapters, commands."""

import re
import subprocess

import pytest
from omegaconf import OmegaConf

from r3_ext.cli import COMMANDS
from r3_ext.settings.compose import ROOT, compose_config, flat

TRACKED = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False
).stdout.split()
PAGES = [ROOT / name for name in TRACKED]


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.skipif(not PAGES, reason="not a git checkout")
def test_every_link_of_the_texts_leads_somewhere():
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, chapter = link.partition("#")
            target = page.parent / path if path else page
            if "://" not in link and not (target.exists() and (not chapter or chapter in anchors(target.read_text()))):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


def test_every_command_of_the_readme_is_one():
    named = set(re.findall(r"(?:^    |`)r3 ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named and named <= set(COMMANDS)


def test_the_reasons_are_those_of_settings_that_there_are():
    section = (ROOT / "docs" / "settings.md").read_text().partition("| setting | paper |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `([\w.]+)`", section, re.MULTILINE)
    keys = {key.removeprefix("algorithm.r3.") for key in flat(OmegaConf.to_container(compose_config([])))}
    assert len(named) > 10 and set(named) <= keys
