"""Makes an authority, the SuperLink's certificate, and keys of SuperNodes."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

_VALID = timedelta(days=30)
_LOCAL = "localhost", "127.0.0.1"


class Certificates:
    """The files of a federation with encrypted traffic and registered nodes.

    The certificates are valid for 30 days.

    Parameters
    ----------
    folder : path
        Folder for the files. Give private keys in it to their holders only.
    hosts : sequence of str, default=()
        Names and addresses at which nodes reach the SuperLink. localhost and
        127.0.0.1 are added, at which the SuperLink's own processes reach it.
    """

    def __init__(self, folder, hosts=()):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ca = self.folder / "ca.pem"
        self.server = self.folder / "superlink.pem"
        self.server_key = self.folder / "superlink.key"
        authority = ec.generate_private_key(ec.SECP384R1())
        _write(
            self.ca,
            _certificate("skfed example CA", authority, authority, None),
            mode=0o644,
        )
        key = ec.generate_private_key(ec.SECP384R1())
        _write(
            self.server,
            _certificate("SuperLink", key, authority, [*_LOCAL, *hosts]),
            mode=0o644,
        )
        _write(self.server_key, _private(key))

    def of_superlink(self) -> list[str]:
        """Return the SuperLink's command-line options."""
        files = {
            "ca-certfile": self.ca,
            "certfile": self.server,
            "keyfile": self.server_key,
        }
        options = [
            text
            for name, path in files.items()
            for text in (f"--ssl-{name}", str(path))
        ]
        return [*options, "--enable-supernode-auth"]

    def make_key(self, name: str) -> tuple[Path, Path]:
        """Make a node's key; return its private and its public file."""
        key = ec.generate_private_key(ec.SECP384R1())
        private = self.folder / f"{name}.key"
        public = self.folder / f"{name}.pub"
        _write(
            private,
            key.private_bytes(
                Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
            ),
        )
        _write(
            public,
            key.public_key().public_bytes(
                Encoding.OpenSSH, PublicFormat.OpenSSH
            ),
            mode=0o644,
        )
        return private, public


def _certificate(name, key, authority, hosts) -> bytes:
    """Return a certificate by the authority; without hosts, its own."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, "skfed example CA")]
    )
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _VALID)
        .add_extension(
            x509.BasicConstraints(ca=hosts is None, path_length=None),
            critical=True,
        )
    )
    if hosts is not None:
        names = [_host(host) for host in dict.fromkeys(hosts)]
        builder = builder.add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
    return builder.sign(authority, SHA256()).public_bytes(Encoding.PEM)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key) -> bytes:
    return key.private_bytes(
        Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
    )


def _write(path: Path, content: bytes, mode: int = 0o600):
    path.touch(mode=0o600)
    path.write_bytes(content)
    path.chmod(mode)
