"""How fast clients compute and communicate: the simulated seconds of a fit.

With ``devices``, the estimators' ``history_`` has the seconds of each round. Clients work side by
side. In an exchange, such as a poll or a training, a client takes

    latency + bytes down / bytes_down_per_second + rows / rows_per_second
    + bytes up / bytes_up_per_second

seconds, where a row is one pass forward and backward, but in a poll, which has no backward pass, it
counts as a third of one. A client drawn twice receives the model once, trains its
copies one after the other and sends both together. To add devices, subclass :class:`BaseDevices`
in a file here and name the class in ``__all__``.
"""

from skfed.devices._base import BaseDevices, Speeds
from skfed.devices._constant import ConstantDevices
from skfed.devices._lognormal import LognormalDevices
from skfed.devices._trace import TraceDevices

__all__ = ["BaseDevices", "ConstantDevices", "LognormalDevices", "Speeds", "TraceDevices"]
