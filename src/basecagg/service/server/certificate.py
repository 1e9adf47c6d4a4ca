"""The certificate that callers are shown: when it expires, and how a new one is taken without a restart."""

import logging
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from basecagg.errors import DataError
from basecagg.service.logs import Log
from basecagg.storage.disk import read_file

_LOG = Log("basecagg.service")
_SOON = timedelta(days=30)
"""A certificate that expires within this time should be renewed."""


class ServerCertificate:
    """The files `tls.pem` and `tls.key` in the server's folder, and whether they are the ones in use."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / "tls.pem", folder / "tls.key"
        self._loaded = self._seen = self._stamps()
        self.expires = self._read()
        self._tell("certificate")

    def look(self, context: ssl.SSLContext) -> None:
        """Show new callers what the files hold, if it is new and was already there at the last look.

        One of the two files is written first, so a change is left to settle. The files are tried in a context
        of their own: with two that do not fit each other, `context` would keep half of them.
        """
        seen, self._seen = self._seen, self._stamps()
        if self._seen != seen or seen == self._loaded:
            return
        self._loaded = seen
        try:
            expires = self._read()
            for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
                # A server has nobody to ask for a password.
                each.load_cert_chain(*self.files, password="")
        except (OSError, DataError) as error:
            _LOG.warning("certificate not renewed", reason=str(error))
        else:
            self.expires = expires
            self._tell("certificate renewed")

    def _stamps(self) -> list[tuple[int, int, int]]:
        """What changes with the files. They may be missing for a moment."""
        stamps = []
        for file in self.files:
            with suppress(OSError):
                found = file.stat()
                stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return stamps

    def _read(self) -> datetime:
        chain, _ = (read_file(file, "the server's certificate or its key") for file in self.files)
        try:
            return x509.load_pem_x509_certificate(chain).not_valid_after_utc
        except ValueError as error:
            raise DataError(f"{self.files[0]} is no certificate: {error}") from None

    def _tell(self, event: str) -> None:
        left = self.expires - datetime.now(UTC)
        level = logging.INFO if left > _SOON else logging.WARNING
        _LOG(level, event, expires=self.expires.isoformat(), days=left.days)
