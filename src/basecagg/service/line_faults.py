"""Why a call did not get through, in words that say what to do: certificates, names, proxies, time."""

import socket
import ssl
from collections.abc import Iterator
from ssl import SSLCertVerificationError

import httpx

from basecagg.errors import ChannelError

_UNKNOWN_CA = "its certificate is not signed by the authority that the invitation names (wrong CA)"
_WRONG_NAME = "its certificate is for another name than the one that was called"
_CERTIFICATE = {
    7: _UNKNOWN_CA,
    9: "its certificate is not valid yet, by this machine's clock",
    10: "its certificate has expired, by this machine's clock: `operator certificate --out DIR` makes another",
    18: _UNKNOWN_CA,
    19: _UNKNOWN_CA,
    20: _UNKNOWN_CA,
    21: _UNKNOWN_CA,
    62: _WRONG_NAME,
    64: _WRONG_NAME,
}
"""OpenSSL's codes for what can be wrong with a certificate."""
_LONGEST = 120


def certificate_fault(error: BaseException) -> str:
    """What is wrong with the certificate that the other side showed; nothing if that was not the reason."""
    for each in _causes(error):
        if isinstance(each, SSLCertVerificationError):
            return _CERTIFICATE.get(each.verify_code, f"its certificate: {each.verify_message}")
    return ""


def other_fault(error: BaseException) -> str:
    """Any other reason."""
    for each in _causes(error):
        match each:
            case httpx.ProxyError():
                return f"the proxy does not let the call through: {str(each)[:_LONGEST]}"
            case socket.gaierror():
                return "its name is not known"
            case ConnectionRefusedError():
                return "nobody listens there"
            case ssl.SSLError(reason="WRONG_VERSION_NUMBER" | "HTTP_REQUEST"):
                return "what listens there speaks no TLS"
            case TimeoutError() | httpx.TimeoutException():
                return "nothing came in time"
    return str(error) if isinstance(error, ChannelError) else type(error).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it came from: libraries wrap what happened several times."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        yield from getattr(error, "exceptions", ())  # several addresses were tried
        error = error.__cause__ or error.__context__
