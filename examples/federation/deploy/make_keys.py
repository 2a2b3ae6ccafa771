"""Makes the files in keys/: certificates, the sites' keys, and a secret."""

import secrets
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from certificates import Certificates  # noqa: E402


def make_keys(folder: Path) -> Certificates:
    """Make the files that compose.yaml names, in a folder."""
    made = Certificates(folder, ["superlink", "proxy"])
    for k in (1, 2, 3):
        made.make_key(f"site-{k}")
    secret = folder / "executor"
    secret.touch(mode=0o600)
    secret.write_text(secrets.token_hex(32))
    return made


if __name__ == "__main__":
    make_keys(HERE / "keys")
