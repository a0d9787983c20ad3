"""The documents' site in a real browser: pages fit a phone, figures are there, text is readable in both themes."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from ..support.documents import ROOT

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium (Debian: apt-get install chromium)"),
]
PHONE = 400  # CSS pixels
LIGHT, DARK = 1, 0  # Chromium's numbers of `prefers-color-scheme`

# Each page says what was laid out; a frame around all of them collects it in its title.
PROBE = """
<script>addEventListener("load", () => setTimeout(() => {
  const figures = [...document.querySelectorAll("article img")];
  parent.postMessage({
    page: "%s",
    overflow: document.documentElement.scrollWidth - innerWidth,
    missing: figures.filter(one => one.naturalWidth === 0).map(one => one.src),
    wide: figures.filter(one => one.getBoundingClientRect().right > innerWidth).map(one => one.src),
    plates: figures.map(one => getComputedStyle(one).backgroundColor),
    ink: getComputedStyle(document.querySelector("article p, article td")).color,
    ground: getComputedStyle(document.body).backgroundColor,
  }, "*");
}, 500));</script>
"""
COLLECT = """<!doctype html><meta name="color-scheme" content="light dark"><script>
const found = [];
addEventListener("message", event => { found.push(event.data); document.title = JSON.stringify(found); });
</script>
"""
FRAME = '<iframe src="%s" style="border:0;width:%dpx;height:900px"></iframe>\n'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(["bash", ROOT / "docs" / "build.sh", "--site-dir", folder], check=True, timeout=300)
    return folder


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_every_page_of_the_site_fits_a_phone_and_is_readable(site: Path, theme: int) -> None:
    found = look(site, theme)
    assert len(found) > 20
    for page in found:
        assert page["overflow"] <= 0 and not page["missing"] and not page["wide"], page
        is_dark = theme == DARK
        assert (brightness(page["ground"]) < 0.3) == is_dark and (brightness(page["ink"]) > 0.5) == is_dark, page
        # Figures are drawn in dark ink.
        assert not is_dark or all(brightness(plate) > 0.9 for plate in page["plates"]), page
    assert sum(len(page["plates"]) for page in found) > 5


def look(site: Path, theme: int) -> list[dict[str, Any]]:
    assert BROWSER is not None
    pages = [page for page in sorted(site.rglob("index.html")) if "<article" in page.read_text()]
    frame = site / f"frame-{theme}.html"
    for page in pages:
        text = page.read_text()
        if "parent.postMessage" not in text:
            page.write_text(text.replace("</body>", PROBE % page.relative_to(site) + "</body>"))
    frame.write_text(COLLECT + "".join(FRAME % (page.relative_to(site), PHONE) for page in pages))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    command += [f"--blink-settings=preferredColorScheme={theme}", f"--user-data-dir={site}/profile-{theme}"]
    done = subprocess.run(
        [*command, "--dump-dom", frame.as_uri()], capture_output=True, text=True, timeout=300, check=True
    )
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None
    found = json.loads(unescape(title[1]))
    assert {one["page"] for one in found} == {str(page.relative_to(site)) for page in pages}
    return found


def brightness(colour: str) -> float:
    """0 to 1; of what is transparent 0."""
    parts = [float(part) for part in re.findall(r"[\d.]+", colour)]
    return 0.0 if len(parts) == 4 and parts[3] == 0 else sum(parts[:3]) / (3 * 255)
