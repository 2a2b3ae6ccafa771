"""What a client keeps of a round in Flower's context: models that it was sent, and its updates."""

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from skfed.flower._local_client import LocalClient
from skfed.flower._messages import LostTensors, Refusal, to_arrays, to_state
from skfed.nets import State, get_state

# Records of this round, in the context's state: what is known of each model, and its state; and
# the updates that are kept until they are asked for.
_HELD, _STATE, UPDATES = "skfed.held ", "skfed.state ", "skfed.update "
# What training leaves alone, of any round, and the digests that the server gave with it.
_FIXED, _DIGESTS = "skfed.fixed", "skfed.digests"


def sent_or_stored_state(content: RecordDict, context: Context, local: LocalClient) -> State:
    """Return the state of a message, or else that of the same name that it has in this round.

    What training leaves alone is added to it.
    """
    request = content["request"]
    if "state" not in content and known_model(context, request) is None:
        t = request["round"]
        raise Refusal(f"it has no model of round {t}: it was restarted after its poll.")
    stored = context.state.get(_STATE + request["model"])
    like, fixed = get_state(local.net), _fixed_arrays(content, context)
    expected = {name: w for name, w in like.items() if name not in fixed}
    own = to_state(content.get("state", stored), expected)
    return own | to_state(fixed, {name: like[name] for name in fixed if name in like})


def _fixed_arrays(content: RecordDict, context: Context) -> ArrayRecord:
    """Return what training leaves alone of the request's model; keep what the message has of it."""
    request, kept = content["request"], context.state
    digests = dict(zip(request.get("fixed", ()), request.get("fixed_digests", ()), strict=True))
    if "fixed" in content:
        arrays = content["fixed"]
        kept[_FIXED] = ArrayRecord({**kept.get(_FIXED, {}), **arrays})
        known = {name: digests[name] for name in arrays}
        kept[_DIGESTS] = ConfigRecord({**kept.get(_DIGESTS, {}), **known})
    known = kept.get(_DIGESTS, {})
    if any(known.get(name) != digest for name, digest in digests.items()):
        raise LostTensors("it was restarted, and asks for the tensors that are sent once.")
    return ArrayRecord({name: kept[_FIXED][name] for name in digests})


def keep_state(context: Context, request: ConfigRecord, state: State, silent: bool) -> None:
    """Keep a state, which is not sent again, and whether this client was silent in its poll."""
    known, bound = known_model(context, request), request.get("at_most", np.inf)
    if known is not None and known["silent"]:
        silent, bound = True, min(bound, known["bound"])
    model = request["model"]
    context.state[_HELD + model] = _of_round(request, silent=silent, bound=bound)
    fixed = request.get("fixed", ())
    own = {name: w for name, w in state.items() if name not in fixed}
    context.state[_STATE + model] = to_arrays(own)


def keep_updates(context: Context, request: ConfigRecord, reply: RecordDict) -> None:
    """Move the updates of a reply to where they are kept until they are asked for."""
    context.state[UPDATES] = _of_round(request)
    for name in [name for name in reply if name.startswith(("state-", "variate-"))]:
        context.state[UPDATES + name] = reply.pop(name)


def _of_round(request: ConfigRecord, **values: Any) -> ConfigRecord:
    """Return a record that says of which round of which fit it is."""
    return ConfigRecord({key: request[key] for key in ("fit_id", "round")} | values)


def is_of_round(context: Context, name: str, request: ConfigRecord) -> bool:
    """Return whether a record of ``_of_round`` is of the request's round."""
    record = context.state.get(name)
    return record is not None and all(record[key] == request[key] for key in ("fit_id", "round"))


def known_model(context: Context, request: ConfigRecord) -> ConfigRecord | None:
    """Return what is known of the request's model in its round; None if it was not sent."""
    name = _HELD + request["model"]
    return context.state[name] if is_of_round(context, name, request) else None


def forget_other_rounds(context: Context, request: ConfigRecord) -> None:
    """Remove what was kept in other rounds."""
    stale = [
        name
        for name in context.state
        if name.startswith((_HELD, UPDATES))
        and "round" in context.state[name]
        and not is_of_round(context, name, request)
    ]
    for name in stale:
        del context.state[name]
        kept = UPDATES if name == UPDATES else _STATE + name.removeprefix(_HELD)
        for other in [other for other in context.state if other.startswith(kept)]:
            del context.state[other]
