"""What `scripts/docs` says of a build, and its last check: `python docs/site/built.py HTML S`.

The pictures of the README and of docs/examples.md are drawn by the same commands on pages of the
site: each must be there, the same to the eye. `held.py` and `seen.py` say what else each page must
be.
"""

import sys
from pathlib import Path

import held
import numpy as np
import seen
from matplotlib.image import imread
from pages import cells

DOCS = Path(__file__).parent.parent
NEAR = 0.02
"""Mean difference of a pixel, of 1: fonts and versions of matplotlib differ by less."""


def drawn(html: Path, picture: Path) -> bool:
    """Whether a page has a picture, in its own size or in another."""
    wanted = imread(picture)
    for made in (html.parent / "jupyter_execute").rglob("*.png"):
        found = imread(made)
        if found.shape == wanted.shape and np.abs(found - wanted).mean() < NEAR:
            return True
    return False


def main(html: Path, seconds: str) -> int:
    """Say what was built; 1 where a picture is missing, or a page is not as it must be."""
    run = [page for page, _ in cells()]
    built = len(list(html.rglob("*.html")))
    print(f"{built} pages, {len(run)} cells of {len({*run})} of them run, {seconds} s: {html}")
    missing = [p.name for p in sorted((DOCS / "img").glob("*.png")) if not drawn(html, p)]
    if missing:
        print(f"no page draws docs/img's {', '.join(missing)} so; run `python scripts/readme.py`")
    faults = [*held.faults(html), *seen.faults(html)]
    print("\n".join(faults))
    return bool(missing or faults)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
