"""What a reader sees of the site, in a browser without a screen.

The user guide is built with the site's own settings, but without the gallery and the reference.
With the folder of a site in SKFED_SITE, all of its pages are looked at instead.
"""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

DOC = Path(__file__).parents[1] / "doc"
GUIDE = sorted((DOC / "user_guide").glob("*.rst"))
SOURCES = {f"user_guide/{path.stem}": path.read_text(encoding="utf-8") for path in GUIDE}
EQUATION = re.compile(r":math:`|^ *\.\. math::", re.MULTILINE)
LATEX = re.compile(r"\\[a-zA-Z]{2,}|[_^]\{|[a-zA-Z]\^[*a-zA-Z]")

# Each page in a frame. innerText is the text that is drawn; code may look like LaTeX, and is left
# out. What is in the markup of an equation is measured, since the element is as wide as its parent.
LOOK = """<!doctype html><meta charset="utf-8">{frames}<pre id="seen"></pre><script>
const box = (element) => element.getBoundingClientRect();
const look = (math) => {{
  const [line, parts] = [box(math.parentElement), [...math.children].map(box)];
  return {{
    block: math.getAttribute("display") === "block",
    drawn: box(math).width > 0 && box(math).height > 0,
    left: Math.min(...parts.map((part) => part.left)) - line.left,
    right: line.right - Math.max(...parts.map((part) => part.right)),
    above: Math.min(...parts.map((part) => part.top)) - line.top,
    below: line.bottom - Math.max(...parts.map((part) => part.bottom)),
  }};
}};
window.onload = () => {{
  const pages = {{}};
  for (const frame of document.querySelectorAll("iframe")) {{
    const page = frame.contentDocument.body;
    const equations = [...page.querySelectorAll("math")].map(look);
    page.querySelectorAll("pre, code, .sig").forEach((code) => code.remove());
    pages[frame.name] = {{equations, text: page.innerText}};
  }}
  document.querySelector("#seen").textContent = JSON.stringify(pages);
}};
</script>"""


@pytest.fixture(scope="module")
def browser():
    """Return the command of a browser, or skip."""
    names = "chromium", "chromium-browser", "google-chrome"
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("there is no Chromium: the site is not looked at")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of a built site, or skip."""
    if "SKFED_SITE" in os.environ:
        return Path(os.environ["SKFED_SITE"]).resolve()
    if find_spec("pydata_sphinx_theme") is None:
        pytest.skip("the extra docs is not installed: the site is not looked at")
    folder = tmp_path_factory.mktemp("site")
    sphinx = [sys.executable, "-m", "sphinx", "-Q", "-c", DOC, "-D", "extensions=mathml"]
    where = ["-d", folder / "doctrees", DOC / "user_guide", folder / "user_guide"]
    subprocess.run([*sphinx, *where], check=True)
    return folder


@pytest.fixture(scope="module")
def pages(browser, site, tmp_path_factory):
    """Return what the browser draws of each page."""
    folder = tmp_path_factory.mktemp("look")
    names = [path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")]
    frame = '<iframe name="{}" src="{}/{}.html" width="1280" height="800"></iframe>'
    frames = "".join(frame.format(name, site.as_uri(), name) for name in names)
    (folder / "look.html").write_text(LOOK.format(frames=frames), encoding="utf-8")
    off = ("gpu", "quic", "background-networking", "component-update", "sync")
    command = [browser, "--headless", "--no-sandbox", "--no-first-run"]
    command += [f"--disable-{what}" for what in off] + [f"--user-data-dir={folder / 'user'}"]
    command += ["--allow-file-access-from-files", "--dump-dom", (folder / "look.html").as_uri()]
    dom = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout
    seen = re.search(r'<pre id="seen">(.+)</pre>', dom, re.DOTALL)
    return json.loads(html.unescape(seen[1]))


def test_no_latex_is_in_the_text_that_is_drawn(pages):
    assert SOURCES.keys() <= pages.keys()
    found = {name: LATEX.findall(page["text"]) for name, page in pages.items()}
    assert not {name: raw for name, raw in found.items() if raw}


def test_each_equation_is_drawn_once(pages):
    drawn = {name: [e["drawn"] for e in pages[name]["equations"]] for name in SOURCES}
    written = {name: len(EQUATION.findall(text)) for name, text in SOURCES.items()}
    assert all(all(equations) for equations in drawn.values())
    assert {name: len(equations) for name, equations in drawn.items()} == written
    assert sum(written.values()) > 50


def test_equations_on_lines_of_their_own_are_centred_and_whole(pages):
    blocks = [e for page in pages.values() for e in page["equations"] if e["block"]]
    assert len(blocks) >= 16
    for equation in blocks:
        assert equation["left"] == pytest.approx(equation["right"], abs=1)
        assert min(equation[side] for side in ("left", "right", "above", "below")) >= 0
