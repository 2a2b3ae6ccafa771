"""Plots of a federation, in scikit-learn's Display convention (extra ``plot``).

``STYLE`` has the matplotlib settings of the displays, for other pictures beside them:
``plt.style.use(STYLE)`` in a script, or ``with plt.rc_context(STYLE): ...``. The displays change no
settings of the session.
"""

from skfed.inspection._clients import ClientsDisplay
from skfed.inspection._convergence import ConvergenceDisplay
from skfed.inspection._participation import ParticipationDisplay
from skfed.inspection._report import participation_report
from skfed.inspection._selection import SelectionDisplay
from skfed.inspection._style import STYLE
from skfed.inspection._timeline import TimelineDisplay
from skfed.inspection._tradeoff import TradeoffDisplay

__all__ = [
    "STYLE",
    "ClientsDisplay",
    "ConvergenceDisplay",
    "ParticipationDisplay",
    "SelectionDisplay",
    "TimelineDisplay",
    "TradeoffDisplay",
    "participation_report",
]
