"""A private certificate authority for one federation: made by the operator, trusted by its invitations only."""

import ipaddress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
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
    name = _name(f"basecagg authority of {federation}")
    return _certify(name, name, _AUTHORITY_DAYS)


def make_server_certificate(authority: Certified, hosts: list[str]) -> Certified:
    """A certificate for a server that is reached under these names or addresses."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    return _certify(
        _name(hosts[0]),
        issuer.subject,
        _SERVER_DAYS,
        signer,
        x509.SubjectAlternativeName([_general_name(host) for host in hosts]),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    )


def _certify(
    subject: x509.Name,
    issuer: x509.Name,
    days: int,
    signer: ec.EllipticCurvePrivateKey | None = None,
    *extensions: x509.ExtensionType,
) -> Certified:
    """A certificate of a new key: signed by an authority's, or by itself, which makes it an authority's."""
    key, now, is_authority = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC), not signer
    limits = x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    unsigned = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(limits, critical=True)
        .add_extension(_usage(signs_certificates=is_authority), critical=True)
    )
    for extension in (identifier, *extensions):
        unsigned = unsigned.add_extension(extension, critical=False)
    certificate = unsigned.sign(signer or key, SHA256()).public_bytes(serialization.Encoding.PEM)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Certified(certificate, pem)


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
