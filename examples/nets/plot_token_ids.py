"""
A transformer reads token ids, and a mask
=========================================

Thirty clients write messages about a product: twenty on phones, in a few words, and ten on
laptops, in many. A message is good if more than half of its words are. All are padded to one
length, so that most of a short message is padding. With the padding mask, a transformer takes fewer
rounds to an accuracy than without, and is right more often on short messages; on long ones, which
have little padding, it makes less of a difference. Token ids and mask are a dict, whose keys are
the arguments of ``forward``.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier, RandomSelector

N_PHONES, N_LAPTOPS, ROWS, N_ROUNDS = 20, 10, 40, 12
LONGEST = 24
N_WORDS = 20  # of each kind
GOOD, BAD = range(1, 1 + N_WORDS), range(1 + N_WORDS, 1 + 2 * N_WORDS)
PADDING = 0

names = [f"phone {i}" for i in range(N_PHONES)]
names += [f"laptop {i}" for i in range(N_LAPTOPS)]


# %%
# Messages of each client. A mask says which ids are words; an array of strings says which messages
# are good.
def write(rows, rng):
    """Return the messages of all clients, their labels, and who wrote them."""
    clients = np.repeat(names, rows)
    on_phone = np.char.startswith(clients, "phone")
    shortest, longest = np.where(on_phone, 3, 18), np.where(on_phone, 8, 24)
    mask = np.arange(LONGEST) < rng.integers(shortest, longest + 1)[:, None]
    share = rng.uniform(size=(len(clients), 1))
    is_good = rng.uniform(size=mask.shape) < share
    good, bad = rng.choice(GOOD, mask.shape), rng.choice(BAD, mask.shape)
    tokens = np.where(mask, np.where(is_good, good, bad), PADDING)
    n_good, n_words = (is_good & mask).sum(axis=1), mask.sum(axis=1)
    y = np.where(2 * n_good > n_words, "good", "bad")
    return {"tokens": tokens, "mask": mask}, y, clients


rng = np.random.default_rng(0)
X, y, clients = write(ROWS, rng)
X_new, y_new, clients_new = write(100, rng)
print("token ids of a message:", X["tokens"][0])


# %%
# One layer of a transformer. Without its mask, padding is attended to, and averaged, as words are.
class Reader(nn.Module):
    """A layer of attention between words, and the mean of what it returns."""

    def __init__(self, masked, width=16):
        super().__init__()
        self.masked = masked
        self.embedding = nn.Embedding(1 + 2 * N_WORDS, width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=2, dim_feedforward=32, dropout=0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, num_layers=1, enable_nested_tensor=False
        )
        self.out = nn.Linear(width, 2)

    def forward(self, tokens, mask):
        if not self.masked:
            mask = torch.ones_like(mask)
        words = self.embedding(tokens)
        words = self.encoder(words, src_key_padding_mask=~mask)
        mask = mask.unsqueeze(-1)
        return self.out((words * mask).sum(1) / mask.sum(1))


def fit(masked):
    """Return a model of all clients."""
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        Reader,
        module__masked=masked,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=5e-3,
        batch_size=10,
    )
    model = FederatedClassifier(
        net,
        selector=RandomSelector(10, probability="uniform", replace=False),
        n_rounds=N_ROUNDS,
        local_epochs=2,
        random_state=0,
    )
    return model.fit(X, y, clients=clients, X_val=X_new, y_val=y_new)


fits = {"with the mask": fit(True), "without": fit(False)}

# %%
# The fraction of new messages for which a model is right.
right = pd.DataFrame(
    {name: model.predict(X_new) == y_new for name, model in fits.items()}
)
is_phone = pd.Series(clients_new).str.startswith("phone")
kinds = is_phone.map({True: "phones", False: "laptops"})
table = right.groupby(kinds).mean().T[["phones", "laptops"]]
print(table.rename_axis(columns=None).to_string(float_format="{:.3f}".format))

# %%
# The accuracy by rounds, and by the length of a message.
figure, (left, by_length) = plt.subplots(
    1, 2, figsize=(9.5, 3.8), layout="constrained", sharey=True
)
lengths = X_new["mask"].sum(axis=1)
for name, model in fits.items():
    left.plot(model.history_["val_score"], label=name)
    by_length.plot(right[name].groupby(lengths).mean(), "o", label=name)
left.set(xlabel="round", ylabel="accuracy", title="The mask saves rounds,")
by_length.set(
    xlabel="words in a message",
    title="and short messages need it most",
)
left.legend(frameon=False, loc="lower right")
plt.show()
