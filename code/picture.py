"""Draw the picture of the README from the stored result of depth20: `make picture`."""

import sys
from pathlib import Path

from highway import results
from highway.figures import plot_curves
from highway.style import to_svg, use_book_style

PLACE = Path(__file__).resolve().parents[1] / "book" / "_static" / "depth20.svg"


def picture() -> str:
    use_book_style()
    return to_svg(plot_curves(results.load("depth20").history, split="running", metrics=["loss"]))


if __name__ == "__main__":
    try:
        PLACE.write_text(picture(), encoding="utf-8", newline="\n")
    except (results.ResultError, OSError) as error:
        sys.exit(f"picture: {error}")
