"""The style of all pictures: one palette, one frame."""

from typing import Any

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
YELLOW = "#F0E442"  # the one of theirs that is too light for lines
STYLES = ["-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1))]  # of lines, after all colours
PRIORITY, FREE = COLOURS[1], COLOURS[0]
# Counts, from none to many.
SHADES = ["#FFFFFF", "#CFE3F1", "#56B4E9", "#0072B2", "#00304D"]
BAND = 0.2  # opacity of the band about a mean

# The matplotlib settings of new axes.
STYLE: Any = {
    "axes.prop_cycle": f"cycler('color', {COLOURS})",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "legend.frameon": False,
}


def tidy(ax: Any) -> None:
    """Give axes, which a caller may have made, the frame of the style."""
    ax.spines[["top", "right"]].set_visible(False)
