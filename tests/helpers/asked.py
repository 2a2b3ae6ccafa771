"""What has been asked of clients, whoever asks."""

from skfed.exchanges import Exchanges


def note_exchanges(monkeypatch):
    """Return a list to which each exchange is added once it is settled."""
    settled, ask = [], Exchanges.ask

    def noted(*arguments, **options):
        settled.append(ask(*arguments, **options))
        return settled[-1]

    monkeypatch.setattr(Exchanges, "ask", noted)
    return settled


def bytes_of_rows(exchanges):
    """Return the bytes down and up of each exchange and client, in the order of ``exchange_``."""
    return [
        (int(down), int(up))
        for exchange in exchanges
        for _, down, up in sorted(zip(exchange.clients, *exchange.n_bytes(0), strict=True))
    ]
