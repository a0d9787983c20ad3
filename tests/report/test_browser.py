"""The report in a real browser: drawn, readable in both themes and at both widths, with nothing in the console."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from recipe.async_dapo_lab.report.learning import CURVES
from recipe.async_dapo_lab.report.write import write_report

from ..support.recorded_runs import write_recipe_run, write_verl_run

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium (Debian: apt-get install chromium)"),
]

# Looks at the page as it was laid out, and says what it found; only this copy of the page has a script. The page is
# shown in a frame, as windows have a least width.
PROBE = """
<script>addEventListener("load", () => {
  const shown = [...document.querySelectorAll("svg.chart")].filter(svg => svg.getBoundingClientRect().width > 0);
  const colour = element => getComputedStyle(element).color;
  parent.postMessage(JSON.stringify({
    width: innerWidth,
    overflow: document.documentElement.scrollWidth - innerWidth,
    charts: shown.map(svg => ({
      width: svg.getBoundingClientRect().width,
      height: svg.getBoundingClientRect().height,
      marks: [...svg.querySelectorAll("path")].filter(path => path.getTotalLength() > 0).length,
      text: Math.min(...[...svg.querySelectorAll("text")].map(text =>
        parseFloat(getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)),
      spilled: [...svg.querySelectorAll("text")].filter(text => {
        const box = text.getBoundingClientRect(), frame = svg.getBoundingClientRect();
        return box.left < frame.left - 2 || box.right > frame.right + 2;
      }).map(text => text.textContent),
    })),
    ink: colour(document.body), ground: getComputedStyle(document.body).backgroundColor,
  }), "*");
});</script>
"""
FRAME = """<!doctype html><meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">
<script>addEventListener("message", event => { document.title = event.data; });</script>
<iframe src="report.html" style="border:0;width:%spx;height:900px"></iframe>
"""
LIGHT, DARK = 1, 0  # Chromium's numbers of `prefers-color-scheme`


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    runs = [write_recipe_run(folder / "partial", failed=2), write_verl_run(folder / "verl_sync")]
    page = write_report(runs)
    page.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    return page


def look(page: Path, *, width: int, theme: int) -> tuple[dict[str, Any], str]:
    """What the browser found, and what it wrote to its console."""
    assert BROWSER is not None
    frame = page.with_name(f"frame-{width}.html")
    frame.write_text(FRAME % width)
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"]
    command += [
        f"--blink-settings=preferredColorScheme={theme}",
        f"--user-data-dir={page.parent}/profile-{width}-{theme}",
    ]
    command += ["--enable-logging=stderr", "--dump-dom", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True)
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found is not None
    return json.loads(unescape(found[1])), "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def brightness(colour: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / (3 * 255)


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_every_chart_is_drawn_and_readable(page: Path, width: int, theme: int) -> None:
    found, console = look(page, width=width, theme=theme)
    assert console == "" and found["width"] == width
    assert found["overflow"] <= 0
    assert len(found["charts"]) == len(CURVES) + 2, "and requests and KV cache of the engines, each at one width"
    for chart in found["charts"]:
        assert chart["width"] > 300 and chart["height"] > 150, chart
        assert chart["marks"] > 3 and chart["text"] >= 9 and not chart["spilled"], chart
    is_dark = theme == DARK
    assert (brightness(found["ground"]) < 0.3) == is_dark and (brightness(found["ink"]) > 0.7) == is_dark
