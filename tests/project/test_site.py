"""What a reader sees of the site, in a browser without a screen.

The user guide is built with the site's own settings, but without the gallery and the reference.
With the folder of a site in SKFED_SITE, all of its pages are looked at instead.
"""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urldefrag, urljoin

import pytest

DOC = Path(__file__).parents[2] / "doc"
GUIDE = sorted((DOC / "user_guide").glob("*.rst"))
SOURCES = {f"user_guide/{path.stem}": path.read_text(encoding="utf-8") for path in GUIDE}
EQUATION = re.compile(r":math:`|^ *\.\. math::", re.MULTILINE)
LATEX = re.compile(r"\\[a-zA-Z]{2,}|[_^]\{|[a-zA-Z]\^[*a-zA-Z]")
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
SOURCE_CODE = "_modules/"  # pages of skfed's source: links lead there
NOT_LOOKED_AT = {"_modules", "_static"}  # folders

# What is in the markup of an equation is measured, since the element is as wide as its parent.
LOOK = """() => {
  const box = (element) => element.getBoundingClientRect();
  const look = (math) => {
    const [line, parts] = [box(math.parentElement), [...math.children].map(box)];
    return {
      block: math.getAttribute("display") === "block",
      drawn: box(math).width > 0 && box(math).height > 0,
      left: Math.min(...parts.map((part) => part.left)) - line.left,
      right: line.right - Math.max(...parts.map((part) => part.right)),
      above: Math.min(...parts.map((part) => part.top)) - line.top,
      below: line.bottom - Math.max(...parts.map((part) => part.bottom)),
    };
  };
  const page = document.body;
  const images = [...page.querySelectorAll("img, object")];
  const found = {
    width: document.documentElement.scrollWidth,
    equations: [...page.querySelectorAll("math")].map(look),
    links: [...page.querySelectorAll("a[href]")].map((link) => link.getAttribute("href")),
    ids: [...document.querySelectorAll("[id]")].map((element) => element.id),
    images: images.map((image) => image.getAttribute("src") || image.getAttribute("data")),
    empty: images.filter((image) => image.complete && !image.naturalWidth).map((i) => i.src),
  };
  return found;
}"""
# What is wider than the text of its page is to have a scroll bar, or a parent with one.
CUT = """() => {
  const article = document.querySelector(".bd-article");
  const scrolls = (element) => {
    for (; element !== article; element = element.parentElement)
      if (["auto", "scroll"].includes(getComputedStyle(element).overflowX)) return true;
    return false;
  };
  const right = (element) => element.getBoundingClientRect().right;
  const inside = (element) => right(element) <= right(article) + 1 || scrolls(element);
  const parts = article ? [...article.querySelectorAll("table, pre, dt, img, object")] : [];
  return parts.filter((part) => !inside(part)).map((part) => part.outerHTML.slice(0, 120));
}"""
# What a reader has to scroll to see on a laptop: code, what it prints, or a table.
CODE = ".highlight-python pre, .highlight-default pre, .sphx-glr-script-out pre"
LONG = """(wanted) => [...document.querySelectorAll(wanted)]
  .filter((part) => part.scrollWidth > part.clientWidth)
  .map((part) => part.innerText.slice(0, 200))"""
# A name is broken if it is drawn in more than one line. Several break between them, and none is
# wider than the line.
BROKEN = """() => [...document.querySelectorAll("dl.field-list dt > strong")]
  .filter((name) => name.scrollWidth > name.offsetWidth
    || !name.innerText.includes(" ")
      && name.offsetHeight > 1.9 * parseFloat(getComputedStyle(name).fontSize))
  .map((name) => name.innerText)"""
CLIPPED = """() => {
  const bar = document.querySelector(".bd-sidebar-secondary");
  if (!bar) return [];
  const right = bar.getBoundingClientRect().right + 1;
  return [...bar.querySelectorAll("a, code")]
    .filter((entry) => entry.getBoundingClientRect().right > right)
    .map((entry) => entry.innerText);
}"""
# innerText is the text that is drawn; code may look like LaTeX, and is left out.
TEXT = """() => {
  document.querySelectorAll("pre, code, .sig").forEach((code) => code.remove());
  return document.body.innerText;
}"""


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that prints nothing."""

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture(scope="module")
def browser():
    """Return a browser, or skip."""
    names = "chromium", "chromium-browser", "google-chrome"
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("there is no Chromium: the site is not looked at")
    driver = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: the site is not looked at"
    )
    with driver.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of a built site, or skip."""
    if "SKFED_SITE" in os.environ:
        return Path(os.environ["SKFED_SITE"]).resolve()
    if find_spec("pydata_sphinx_theme") is None:
        pytest.skip("the extra docs is not installed: the site is not looked at")
    folder = tmp_path_factory.mktemp("site")
    sphinx = [
        sys.executable,
        "-m",
        "sphinx",
        "-Q",
        "-c",
        DOC,
        "-D",
        "extensions=mathml,results,sphinx.ext.autodoc",
    ]
    where = ["-d", folder / "doctrees", DOC / "user_guide", folder / "html" / "user_guide"]
    subprocess.run([*sphinx, *where], check=True)
    return folder / "html"


@pytest.fixture(scope="module")
def address(site):
    """Serve the site on this machine; return its address."""
    handler = partial(Quiet, directory=site)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def pages(browser, site, address):
    """Return what the browser draws of each page, and what it logs."""
    names = sorted(
        path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")
    )
    window, seen = browser.new_page(viewport=WIDE), {}
    errors: list[str] = []

    def note(message):
        if message.type == "error":
            errors.append(f"{message.location['url']}: {message.text}")

    window.on("console", note)
    window.on("pageerror", lambda error: errors.append(str(error)))
    for name in names:
        if NOT_LOOKED_AT & set(name.split("/")):
            continue
        errors.clear()
        window.set_viewport_size(WIDE)
        window.goto(f"{address}{name}.html")
        seen[name] = window.evaluate(LOOK) | {"errors": list(errors)}
        seen[name] |= {
            "cut": window.evaluate(CUT),
            "long": window.evaluate(LONG, f"{CODE}, .pst-scrollable-table-container"),
            "broken": window.evaluate(BROKEN),
            "clipped": window.evaluate(CLIPPED),
        }
        window.set_viewport_size(PHONE)
        seen[name]["phone"] = window.evaluate("document.documentElement.scrollWidth")
        seen[name]["cut on a phone"] = window.evaluate(CUT)
        seen[name]["broken on a phone"] = window.evaluate(BROKEN)
        seen[name]["text"] = window.evaluate(TEXT)  # the last look, since it removes code
    window.close()
    return seen


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


def test_no_page_is_wider_than_its_window(pages):
    wide = {name: page["width"] for name, page in pages.items()}
    phone = {name: page["phone"] for name, page in pages.items()}
    assert not {name: width for name, width in wide.items() if width > WIDE["width"]}
    assert not {name: width for name, width in phone.items() if width > PHONE["width"]}


@pytest.mark.parametrize("where", ["cut", "cut on a phone"])
def test_tables_and_code_are_within_the_text_or_scroll(pages, where):
    assert not {name: page[where] for name, page in pages.items() if page[where]}


@pytest.mark.parametrize("where", ["broken", "broken on a phone"])
def test_names_of_parameters_are_in_one_line(pages, where):
    assert not {name: page[where] for name, page in pages.items() if page[where]}


def test_what_is_on_a_page_is_listed_whole(pages):
    assert not {name: page["clipped"] for name, page in pages.items() if page["clipped"]}


def test_code_and_tables_fit_the_page_of_a_laptop(pages):
    assert not {name: page["long"] for name, page in pages.items() if page["long"]}


@pytest.mark.parametrize(("columns", "found"), [(80, 0), (200, 1)])
def test_what_code_prints_is_found_where_it_scrolls(browser, columns, found):
    window = browser.new_page(viewport=WIDE)
    text = f"<pre style='overflow-x: auto'>{'x' * columns}</pre>"
    window.set_content(f"<div class='sphx-glr-script-out'><div>{text}</div></div>")
    assert len(window.evaluate(LONG, CODE)) == found
    window.close()


@pytest.mark.parametrize("style", ["", "overflow-x: auto"])
def test_what_is_cut_off_is_found(browser, style):
    window = browser.new_page(viewport=PHONE)
    table = "<table style='width: 2000px'></table>"
    window.set_content(f"<div class='bd-article'><div style='{style}'>{table}</div></div>")
    assert len(window.evaluate(CUT)) == (not style)
    window.close()


def test_images_are_there(pages, site):
    assert not {name: page["empty"] for name, page in pages.items() if page["empty"]}
    files = {
        (name, source): site / name / ".." / unquote(source)
        for name, page in pages.items()
        for source in page["images"]
        if not source.startswith(("data:", "http"))
    }
    assert files
    assert not [key for key, path in files.items() if not path.resolve().exists()]


def targets_of(site, pages):
    """Return the anchors of each page of the site."""
    anchors = {f"{name}.html": {*page["ids"], ""} for name, page in pages.items()}
    for path in (site / SOURCE_CODE).rglob("*.html"):
        ids = re.findall(r'id="([^"]+)"', path.read_text(encoding="utf-8"))
        anchors[path.relative_to(site).as_posix()] = {*ids, ""}
    return anchors


def broken_links(site, pages):
    """Yield each link to a page or place of the site that is not there."""
    anchors = targets_of(site, pages)
    for name, page in pages.items():
        for link in {link for link in page["links"] if ":" not in link.partition("#")[0]}:
            target, anchor = urldefrag(urljoin(f"/{name}.html", link))
            target = unquote(target).lstrip("/")
            known = anchors.get(target)
            if known is None:
                if not (site / target).is_file():
                    yield name, link
            elif unquote(anchor) not in known:
                yield name, link


def test_links_lead_somewhere(pages, site):
    assert not sorted(broken_links(site, pages))


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.zip").touch()
    links = ["b.html", "b.html#here", "b.html#gone", "c.html", "a.zip", "#x", "https://d.org/"]
    pages = {"a": {"links": links, "ids": []}, "b": {"links": ["a.html"], "ids": ["here"]}}
    assert set(broken_links(tmp_path, pages)) == {
        ("a", "b.html#gone"),
        ("a", "c.html"),
        ("a", "#x"),
    }


def test_the_browser_logs_no_error(pages):
    assert not {name: page["errors"] for name, page in pages.items() if page["errors"]}


def test_the_search_finds_fedalign(browser, address, site):
    if not (site / "index.html").exists():
        pytest.skip("only the guide was built: SKFED_SITE has no whole site")
    window = browser.new_page(viewport=WIDE)
    window.goto(f"{address}search.html?q=FedALIGN")
    window.wait_for_selector("ul.search li a")
    found = window.locator("ul.search li a").evaluate_all("links => links.map(one => one.href)")
    window.close()
    assert any("user_guide/selectors.html" in link for link in found)
