"""The pictures in doc/images, drawn by the gallery's examples: ``make pictures`` copies them there.

They are the README's picture, and the thumbnails of examples that are shown without their output
where their data are absent. tests/project/test_gallery.py compares them with those of a built
gallery.
"""

import re
import shutil
from pathlib import Path

DOC = Path(__file__).parents[1]
IMAGES = DOC / "images"
THUMBNAIL = re.compile(r"^# sphinx_gallery_thumbnail_path = 'images/(.+)'$", re.MULTILINE)


def committed() -> dict[str, str]:
    """Return the pictures' names, and the examples whose first picture each is."""
    found = {"quickstart.png": "plot_quickstart"}
    for path in sorted(DOC.parent.glob("examples/*/plot_*.py")):
        for name in THUMBNAIL.findall(path.read_text(encoding="utf-8")):
            found[name] = path.stem
    return found


def drawn(site: Path, example: str) -> Path:
    """Return the first picture of an example in a built site."""
    return site / "_images" / f"sphx_glr_{example}_001.png"


if __name__ == "__main__":
    for name, example in committed().items():
        shutil.copyfile(drawn(DOC / "_build" / "html", example), IMAGES / name)
        print(f"doc/images/{name}: the first picture of {example}")
