"""Pictures of a report and of its timeline, from a real run: python -m benchmarks.report_pictures.draw [RUN]

RUN is the folder of a `bash quickstart.sh --compare --output RUN`; its record is copied to `assets/report_pictures/`,
and the pictures are drawn from there. Without RUN they are drawn again. Needs Chromium (Debian: apt-get install
chromium).
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

from recipe.async_dapo.record.run_files import RUN_FILE, STEPS_FILE
from recipe.async_dapo_lab.report.page import STYLE
from recipe.async_dapo_lab.report.timeline import read_timeline
from recipe.async_dapo_lab.report.write import engine_charts, write_report
from recipe.async_dapo_lab.run_files import RESPONSES_FILE, SAMPLES_FILE

ASSETS = Path(__file__).parents[2] / "assets" / "report_pictures"
OURS, VERLS = ASSETS / "partial", ASSETS / "verl_sync"
VERL_FILE = "metrics.jsonl"
WIDTH, COLOURS = 1280, 64
REPORT_HEIGHT, PAGE_HEIGHT = 850, 1600  # [pixels]: what the picture shows of a report, what the browser lays out
BROWSERS = ("chromium", "google-chrome", "chromium-browser")


def take(run: Path) -> None:
    """Copy the record of both runs, without the paths of the machine."""
    for folder in (OURS, VERLS):
        folder.mkdir(parents=True, exist_ok=True)
    for name in (STEPS_FILE, SAMPLES_FILE, RESPONSES_FILE):
        shutil.copy(run / name, OURS)
    shutil.copy(run / "verl_sync" / VERL_FILE, VERLS)
    description = json.loads((run / RUN_FILE).read_text())
    description["settings"]["model"] = "the quick start's"
    (OURS / RUN_FILE).write_text(json.dumps(description, indent=2) + "\n")


def draw() -> list[Path]:
    """Returns the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        write_report([OURS, VERLS], page)
        (OURS / "timeline.json").unlink()
        report = _shot(page).crop((0, 0, WIDTH, REPORT_HEIGHT))
        charts = engine_charts(read_timeline(OURS / SAMPLES_FILE), "engines")
        page.write_text(f"<!doctype html><style>{STYLE}</style><main>{charts}</main>")
        timeline = _trimmed(_shot(page))
    pictures = {ASSETS / "report.png": report, ASSETS / "timeline.png": timeline}
    for path, picture in pictures.items():
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    return list(pictures)


def _shot(page: Path) -> Image.Image:
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit("needs Chromium (Debian: apt-get install chromium)")
    picture = page.with_suffix(".png")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size={WIDTH},{PAGE_HEIGHT}", f"--user-data-dir={page.parent}/profile"]
    command += [f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    with Image.open(picture) as shot:
        return shot.convert("RGB")


def _trimmed(picture: Image.Image) -> Image.Image:
    """Without the empty rows below."""
    ground = Image.new("RGB", picture.size, picture.getpixel((0, picture.height - 1)))
    box = ImageChops.difference(picture, ground).getbbox()
    assert box is not None, "an empty page"
    return picture.crop((0, 0, picture.width, box[3] + 8))


if __name__ == "__main__":
    if sys.argv[1:]:
        take(Path(sys.argv[1]))
    sys.stdout.write("".join(f"{path}\n" for path in draw()))
