"""A private certificate authority for one federation: made by the operator, trusted by its invitations only."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_AUTHORITY_DAYS, _SERVER_DAYS = 3650, 800


class Certified(NamedTuple):
    """A certificate and its key, in PEM. The key is a secret."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        """Never show the key."""
        return "Certified(…)"


def make_authority(federation: str) -> Certified:
    """A new authority that may sign server certificates and nothing below them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"basecagg authority of {federation}")
    only_leaves = x509.BasicConstraints(ca=True, path_length=0)
    unsigned = (
        _builder(name, name, key.public_key(), _AUTHORITY_DAYS)
        .add_extension(only_leaves, critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Certified(unsigned.sign(key, SHA256()).public_bytes(Encoding.PEM), _pem(key))


def make_server_certificate(authority: Certified, hosts: list[str]) -> Certified:
    """A certificate for a server that is reached under these names or addresses."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = load_pem_private_key(authority.key, None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    web_server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    unsigned = (
        _builder(_name(hosts[0]), issuer.subject, key.public_key(), _SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(alternatives, critical=False)
        .add_extension(web_server, critical=False)
        .add_extension(signer, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Certified(unsigned.sign(issuer_key, SHA256()).public_bytes(Encoding.PEM), _pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
