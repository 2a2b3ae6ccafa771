"""What the guide's page on trust says of Flower's SecAgg+, which is why it is not used."""

import local_grid  # noqa: F401  (it says of which run messages are)
import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.supercore.primitives.asymmetric import generate_key_pairs

NOW = Stage.COLLECT_MASKED_VECTORS  # so that the next stage is the last


def context(**state):
    records = {"secaggplus_state": ConfigRecord({"current_stage": NOW, **state})} if state else {}
    return Context(1, 1, {}, RecordDict(records), {})


def message(kind, **configs):
    records = {RECORD_KEY_CONFIGS: ConfigRecord(configs)} if configs else {}
    return Message(RecordDict(records), 1, kind)


def test_the_workflow_needs_a_context_of_flower_s_older_server():
    with pytest.raises(TypeError, match="LegacyContext"):
        SecAggPlusWorkflow(3, 2)(None, context())


def test_the_mod_takes_every_training_for_one_of_its_stages():
    with pytest.raises(KeyError):
        secaggplus_mod(message("train"), context(), lambda m, c: m)
    poll = message("query.skfed_poll")
    assert secaggplus_mod(poll, context(), lambda m, c: m) is poll


def test_a_mask_has_28_bits():
    key = generate_shared_key(generate_key_pairs()[0], generate_key_pairs()[1])
    folded = np.bitwise_xor.reduce(np.frombuffer(key, dtype="<u4"))
    assert folded & 0x80808080 == 0
    other = int(folded).to_bytes(4, "little")
    for mine, its in zip(
        *(pseudo_rand_gen(k, 2**32, [(5,), ()]) for k in (key, other)), strict=True
    ):
        np.testing.assert_array_equal(mine, its)


def test_a_server_gets_both_secrets_of_a_client():
    shares = {f"{name}:K": [7] for name in ("rd_seed_share_dict", "sk1_share_dict")}
    values = {"rd_seed_share_dict:V": [b"seed"], "sk1_share_dict:V": [b"key"], "threshold": 1}
    asked = {Key.STAGE: Stage.UNMASK, Key.ACTIVE_NODE_ID_LIST: [7], Key.DEAD_NODE_ID_LIST: [7]}
    reply = secaggplus_mod(message("train", **asked), context(**shares, **values), None)
    assert reply.content[RECORD_KEY_CONFIGS][Key.SHARE_LIST] == [b"seed", b"key"]
