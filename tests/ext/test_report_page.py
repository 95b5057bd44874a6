"""The page of `r3 report` in headless Chromium: phone and desktop width, light and dark, nothing from the network."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from r3_ext.report.command import write
from tests.ext.reported import HOSTILE, config_of, noisy_rows, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on PATH")
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --allow-file-access-from-files --virtual-time-budget=5000""".split()
DARK, LIGHT = 0, 1
# Headless windows have a least width, frames do not. Its page allows no script: this one looks into it from outside.
PROBE = """<!doctype html><body style="margin:0">
<iframe id="frame" src="report.html" style="width:{width}px;height:900px;border:0"></iframe><pre id="result"></pre>
<script>
addEventListener("load", () => {{
  const frame = document.getElementById("frame"), view = frame.contentWindow, page = frame.contentDocument;
  const style = (element, name) => view.getComputedStyle(element)[name];
  const boxes = selector => [...page.querySelectorAll(selector)].map(element => {{
    const box = element.getBoundingClientRect();
    return [box.left, box.right, box.height];
  }});
  for (const details of page.querySelectorAll("details")) details.open = true;
  document.getElementById("result").textContent = JSON.stringify({{
    inner: view.innerWidth, scroll: page.documentElement.scrollWidth,
    background: style(page.body, "backgroundColor"), ink: style(page.body, "color"),
    axis: style(page.querySelector("figure > svg text"), "fill"),
    curve: style(page.querySelector("figure > svg path[style*='--s0']"), "stroke"),
    text: parseFloat(style(page.querySelector("figure > svg text"), "fontSize")),
    scale: page.querySelector("figure > svg").getBoundingClientRect().width / 300,
    svgs: boxes("figure > svg"), blocks: boxes("h1, h2, h3, p, li, td, th, dd, figcaption"),
    lefts: [...new Set(boxes("figure").map(box => Math.round(box[0])))],
    requests: view.performance.getEntriesByType("resource").map(entry => entry.name),
  }});
}});
</script>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A report on three arms with two seeds, names as long and as hostile as files may have them."""
    base = tmp_path_factory.mktemp("report")
    runs = []
    for arm in range(3):
        for seed in range(2):
            rows = noisy_rows(10 * arm + seed, 40)
            rows[3] |= {
                f"timing_s/{'w' * 300}": 9.0,
                "val/a_benchmark_without_any_space_in_its_very_long_name/pass@1": 1,
            }
            environment = {"command": f"python {HOSTILE} " + "x" * 2000, "machine": "m" * 300}
            config = config_of(seed, "x", k=arm) | {"actor_rollout_ref": {"model": {"path": "m" * 300}}}
            runs.append(write_run(base / f"{'e' * 90}{arm}" / str(seed), rows, config, environment=environment))
    points = {"1": [0.1, 0.05, 0.2], "2": [0.2, 0.1, 0.3]}
    benchmarks = {"math500": {"pass_at_k": points, "pass_at_16_by_limit": {"4096": [0.1, 0.0, 0.2]}}}
    (base / "hard.json").write_text(json.dumps({"runs": [{"name": "n" * 200, "benchmarks": benchmarks}]}))
    write(runs, out=base / "out", hard=base / "hard.json")
    return base / "out"


def look(folder, tmp_path, width, scheme):
    """What the page measures in a frame of this width."""
    probe = folder / f"probe_{width}.html"
    probe.write_text(PROBE.format(width=width))
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900"]
    command += [f"--blink-settings=preferredColorScheme={scheme}", "--dump-dom", probe.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found and found[1], done.stdout[-500:] + done.stderr[-500:]
    return json.loads(unescape(found[1]))


def brightness(color):
    """Of a computed color `rgb(r, g, b)`, from 0 to 255."""
    return sum(int(part) for part in re.findall(r"\d+", color)[:3]) / 3


@pytest.mark.parametrize(("width", "columns"), [(390, 1), (1280, 4)])
@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_the_page_fits_its_window_and_follows_the_colour_scheme(folder, tmp_path, width, columns, scheme):
    seen = look(folder, tmp_path, width, scheme)
    assert seen["inner"] == width and seen["scroll"] <= width
    assert len(seen["svgs"]) > 20 and len(seen["lefts"]) == columns
    assert all(left >= 0 and right <= width and height > 100 for left, right, height in seen["svgs"])
    assert all(left >= 0 and right <= width for left, right, _ in seen["blocks"])
    assert 8 <= seen["text"] * seen["scale"] <= 13
    dark = scheme == DARK
    assert (brightness(seen["background"]) < 60) is dark and (brightness(seen["ink"]) > 195) is dark
    assert abs(brightness(seen["axis"]) - brightness(seen["background"])) > 90
    assert seen["curve"] == ("rgb(79, 173, 234)" if dark else "rgb(0, 114, 178)")
    assert seen["requests"] == []
