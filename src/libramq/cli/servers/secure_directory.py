"""The directory of `libra up --secure`: the certificate authority, the servers' certificate, and the first
user.

    DATA/secure/ca.pem, ca.key          created once
                server.pem, server.key  created at each start: addresses change, and certificates expire
                access.properties       created once: the clients' properties, for LIBRA_ACCESS

Only its owner can read it. Apache has no equivalent.
"""

import contextlib
import ipaddress
import os
import secrets
import stat
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from libramq.broker.config import INITIAL_USER_OPTION
from libramq.errors import ConfigError
from libramq.formats.access import UserInfo
from libramq.formats.document import encode_body
from libramq.formats.properties_file import property_line, read_properties
from libramq.transport import access as of_clients

PEM: Final = serialization.Encoding.PEM
#: The first user: a super user.
USER: Final = "admin"
#: Ours: random bytes of the user's password.
_PASSWORD_BYTES: Final = 24
#: Ours: the authority's lifetime; clients trust it until its directory is removed.
_CA_DAYS: Final = 3_650
#: The longest lifetime that Apple's clients accept (support.apple.com/102028); each start makes a new one.
_SERVER_DAYS: Final = 397
#: Ours: certificates are valid from this long ago, for clocks that are behind.
_BEFORE: Final = timedelta(days=1)


class SecureDirectory:
    """The files of secured servers; missing ones are created. Raises ConfigError.

    names: the addresses and names by which clients and servers reach them.
    """

    def __init__(self, data: Path, names: Collection[str]) -> None:
        self._path = data.absolute() / "secure"
        for path in (data, self._path):  # Independent of the umask.
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own(data.absolute(), others=stat.S_IWGRP | stat.S_IWOTH)
        for path in (self._path, *self._path.iterdir()):
            _require_own(path, others=stat.S_IRWXG | stat.S_IRWXO)
        self._ca_file, self._ca_key_file = self._path / "ca.pem", self._path / "ca.key"
        if not self._ca_file.exists():
            self._make_authority()
        self._make_certificate(names)
        if not self.access_file.exists():
            self._make_access()

    @property
    def access_file(self) -> Path:
        """Return the file for clients, which contains the first user's password."""
        return self._path / "access.properties"

    def properties(self) -> dict[str, str]:
        """Return the options of broker.conf that secure the servers."""
        access = read_properties(self.access_file)
        try:
            user = UserInfo(username=access[of_clients.ACCESS_KEY], password=access[of_clients.SECRET_KEY])
        except KeyError as missing:
            raise ConfigError(f"{self.access_file} has no {missing.args[0]}; put it back") from None
        return {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            INITIAL_USER_OPTION: encode_body(user).decode(),
            "tls.server.mode": "enforcing",
            "tls.server.certPath": str(self._path / "server.pem"),
            "tls.server.keyPath": str(self._path / "server.key"),
            "tls.enable": "true",
            "tls.client.trustCertPath": str(self._ca_file),
        }

    def _make_access(self) -> None:
        lines = {
            of_clients.ACCESS_KEY: USER,
            of_clients.SECRET_KEY: secrets.token_urlsafe(_PASSWORD_BYTES),
            of_clients.TLS_ENABLE: "true",
            of_clients.TRUST_CERT_PATH: str(self._ca_file),
        }
        text = "".join(property_line(name, value) for name, value in lines.items())
        _write_private(self.access_file, text.encode("latin-1"))

    def _make_authority(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "LibraMQ's own authority")])
        made = (
            _builder(name, name, key, _CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
        )
        _write_private(self._ca_key_file, _pem_of_key(key))
        _write_private(self._ca_file, made.sign(key, hashes.SHA256()).public_bytes(PEM))

    def _make_certificate(self, names: Collection[str]) -> None:
        try:
            authority = x509.load_pem_x509_certificate(self._ca_file.read_bytes())
            ca_key = serialization.load_pem_private_key(self._ca_key_file.read_bytes(), None)
            assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
        except (OSError, ValueError, AssertionError) as error:
            raise ConfigError(
                f"{self._ca_file} or {self._ca_key_file.name} cannot be used ({error or 'not its kind'});"
                f" remove both to create new ones, and give clients the new {self._ca_file.name}"
            ) from None
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "LibraMQ")])
        made = (
            _builder(name, authority.subject, key, _SERVER_DAYS)
            .add_extension(
                x509.SubjectAlternativeName([_general_name(each) for each in names]), critical=False
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
            )
        )
        _write_private(self._path / "server.key", _pem_of_key(key))
        _write_private(self._path / "server.pem", made.sign(ca_key, hashes.SHA256()).public_bytes(PEM))


def _require_own(path: Path, *, others: int) -> None:
    """Raise ConfigError for a link, or a path that others own or have permissions on.

    They could know or set the password. others: the forbidden permission bits.
    """
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & others:
        raise ConfigError(
            f"--secure: {path} must be yours alone and not a link (mode {stat.S_IMODE(found.st_mode):04o});"
            " chown and chmod it, or name another directory with --data"
        )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _BEFORE,
        not_valid_after=now + timedelta(days=days) - _BEFORE,
    ).add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write_private(path: Path, content: bytes) -> None:
    """Write a file atomically, readable by its owner only."""
    draft = path.with_name(f".{path.name}.draft")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(file, "wb") as output:
        output.write(content)
        output.flush()
        os.fsync(file)
    draft.rename(path)
