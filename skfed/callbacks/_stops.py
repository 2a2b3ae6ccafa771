"""Tells a callback that stops the rounds from a person who interrupts them."""

from dis import opmap
from types import TracebackType

from skorch.callbacks import Callback

_RAISE = opmap["RAISE_VARARGS"]


def stops_rounds(error: KeyboardInterrupt) -> bool:
    """Return whether a ``raise`` statement in a method of a callback has raised an error.

    skorch's EarlyStopping, and callbacks of users, stop a fit by ``raise KeyboardInterrupt``.
    Ctrl-C raises it too, in whatever code runs, that of EarlyStopping maybe. But Python handles a
    signal after a call or at a jump back, and never in the instruction of a ``raise`` statement,
    so the innermost entry of the traceback tells them apart.

    What other code raises counts as an interrupt: a handler of signals in Python, a scorer, or a
    library that passes on a worker's. Taken for a stop, it would end the fit in silence.
    """
    last: TracebackType | None = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    code, names = last.tb_frame.f_code, last.tb_frame.f_locals
    owner = names.get(code.co_varnames[0]) if code.co_argcount else None
    return isinstance(owner, Callback) and code.co_code[last.tb_lasti] == _RAISE
