"""Reports in a browser: they fit a desktop and a phone in both colour schemes, and the console stays silent."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from report_data import report_pages

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
FLAGS = ["--headless", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", "--force-device-scale-factor=1"]
DARK = "--blink-settings=preferredColorScheme=0"
WIDTHS = (1280, 390)
HEIGHT = 3000
HARNESS = """<!doctype html><title>not measured</title><body style="margin:0; background:gray">{frames}
<script>
const measured = frame => {{
  const view = frame.contentWindow, root = view.document.documentElement;
  for (const folded of root.querySelectorAll("details")) folded.open = true;
  const all = [...root.querySelectorAll("body *")].filter(e => !e.closest("svg") && !e.closest("thead"));
  const box = e => e.getBoundingClientRect();
  const wide = all.filter(e => box(e).right > view.innerWidth + 0.5 || box(e).left < -0.5);
  const small = all.filter(e => parseFloat(view.getComputedStyle(e).fontSize) < 11.5);
  return {{ width: view.innerWidth, scroll: root.scrollWidth, wide: wide.map(e => e.outerHTML.slice(0, 120)),
    small: small.map(e => e.outerHTML.slice(0, 120)) }};
}};
addEventListener("load", () => {{
  document.title = JSON.stringify([...document.querySelectorAll("iframe")].map(measured));
}});
</script>"""
FRAME = """<iframe style="border:0; position:absolute; left:{left}px; top:0" width="{width}" height="{height}"
srcdoc="{page}"></iframe>"""


def chromium(folder: Path, *words: str) -> tuple[str, list[str]]:
    """What Chromium prints, and the console's lines."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [CHROMIUM, *FLAGS, *sandbox, f"--user-data-dir={folder / 'profile'}", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def harness_of(pages: dict[str, Path], path: Path) -> list[tuple[str, int, int]]:
    """Write a page with every report at every width side by side; returns (name, width, left) of each frame."""
    frames, places, left = [], [], 0
    for width in WIDTHS:
        for name, page in pages.items():
            text = html.escape(page.read_text(encoding="utf-8"), quote=True)
            frames.append(FRAME.format(left=left, width=width, height=HEIGHT, page=text))
            places.append((name, width, left))
            left += width
    path.write_text(HARNESS.format(frames="".join(frames)), encoding="utf-8")
    return places


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    return report_pages(tmp_path_factory.mktemp("pages"))


@in_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_chromium_pages_fit_a_desktop_and_a_phone_without_a_word_on_the_console(tmp_path, pages, scheme):
    harness, picture = tmp_path / "harness.html", tmp_path / f"{scheme}.png"
    places = harness_of(pages, harness)
    words = [DARK] if scheme == "dark" else []
    size = sum(width for _, width, _ in places)
    shot = [f"--screenshot={picture}", f"--window-size={size},{HEIGHT}", "--dump-dom", "--virtual-time-budget=3000"]
    printed, console = chromium(tmp_path, *words, *shot, f"file://{harness}")
    assert console == []
    found = json.loads(html.unescape(re.search("<title>(.*?)</title>", printed)[1]))
    for (name, width, left), frame in zip(places, found, strict=True):
        assert frame == {"width": width, "scroll": width, "wide": [], "small": []}, name
        with Image.open(picture) as image:
            shown_page = image.crop((left, 0, left + width, HEIGHT))
            shown_page.save(tmp_path / f"{name}-{width}-{scheme}.png")
            pixels = np.asarray(shown_page.convert("L"))
        assert (np.median(pixels) < 60) if scheme == "dark" else (np.median(pixels) > 230)
        assert pixels[:600].std() > 10


@in_chromium
def test_in_chromium_a_report_opened_by_itself_says_nothing_on_the_console(tmp_path, pages):
    printed, console = chromium(tmp_path, "--dump-dom", f"file://{pages['run']}")
    assert console == []
    assert "Over time" in printed
