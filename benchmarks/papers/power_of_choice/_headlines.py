"""Power-of-choice's main claims, in its own order of importance."""

from benchmarks.papers.power_of_choice._images import CALIBRATED_LR, LR
from benchmarks.papers.summary import Headline, Paper

PAPER = Paper(
    "Power-of-choice",
    [
        Headline(
            "pow-d needs about half the rounds to 60% of random selection with three times as many "
            "clients",
            "Table [12]: pow-d.*rounds to 60%",
            "Table 1",
        ),
        Headline(
            "pow-d and its variants end 5 (alpha=0.3) or 10 points above that random selection",
            "Table [12]: .*accuracy above",
            "Table 1: pow-d",
        ),
        Headline(
            "with as many clients they end 5 to 15 points above random selection",
            "Figure .*accuracy above rand's$",
            "Figure 5: pow-d.*alpha=0.3",
        ),
        Headline(
            "the cheaper cpow-d and rpow-d need about half the rounds too",
            "Table [12]: [cr]pow-d.*rounds to 60%",
            "Table 1: cpow-d",
        ),
        Headline(
            "they end above random selection, by however little, with larger batches, more steps "
            "or more clients",
            ": [cr]?pow-d.*higher accuracy than rand$",
            "pow-d, d=6.*alpha=0.3",
        ),
        Headline(
            "their training loss falls faster than that of random selection or afl",
            "training loss below",
            "Figure 5: pow-d.*alpha=0.3",
        ),
        Headline(
            "they are ahead of afl, which is between them and random selection",
            "higher accuracy than afl|accuracy above afl's|afl: (?!seconds)|as accurate as afl",
            "Figure 5: pow-d.*alpha=0.3",
        ),
        Headline(
            "cpow-d is as accurate as pow-d, or at alpha=2 a little behind, and ahead of rpow-d",
            "cpow-d.*as accurate as pow-d|rpow-d.*as accurate as pow-d"
            "|pow-d.*higher accuracy than [cr]pow-d",
            "Figure 6: cpow-d.*alpha=0.3",
        ),
        Headline(
            "more candidates are better at alpha=2, fewer at alpha=0.3",
            r"Figure 5: .*higher accuracy than pow-d, d=\d+$",
            "alpha=0.3",
            ("fewer at alpha=0.3", r"alpha=0\.3"),
        ),
        Headline(
            "with 100 local steps and alpha=0.3 pow-d is no better than random selection",
            "as accurate as rand$",
            "alpha=0.3",
        ),
        Headline(
            "on Synthetic(1, 1) pow-d needs a half to a third of random selection's rounds to a "
            "loss of 0.7",
            "Figure 4: pow-d.*rounds to loss",
            "d=10m.*m=1",
            ("with one client a round", "m=1"),
        ),
        Headline(
            "more candidates converge faster, with a higher floor of the error",
            "Figure 2: pow-d.*(faster|higher error floor)|Figure 4: .*slightly higher"
            "|error floor as rand's",
            "higher error floor than rand",
        ),
        Headline(
            "adapow-d keeps none of pow-d's bias: its error ends no higher than random selection's",
            "Figure [24]: adapow-d.*(share left|no higher|ends at rand's floor)",
            "share left of the bias",
        ),
        Headline(
            "adapow-d is as fast as pow-d, also to the loss that random selection ends with",
            "Figure [24]: adapow-d.*(as fast as|rounds to)",
            "Figure 4.*pow-d, d=10m; m=1$",
            ("on quadratic objectives", "; K="),
        ),
        Headline(
            "a round takes the seconds of its tables, fewer than with random selection of three "
            "times as many clients, but for pow-d",
            "Table [12]: .*seconds a round",
            "Table 1: cpow-d.*over those",
            ("without pow-d", "Table [12]: (?!pow-d)"),
        ),
        Headline(
            "the estimated skews, and who is selected, explain it",
            "Figure [37]: ",
            "K=30",
        ),
    ],
    rates=(f"{LR:g}", f"{CALIBRATED_LR:g}"),
)
