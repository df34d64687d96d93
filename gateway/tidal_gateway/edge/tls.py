"""TLS of the gateway's port: certificate files, read again when they change."""

from __future__ import annotations

import logging
import ssl
import time
from typing import Final

from tidal.errors import InvalidArgument
from tidal_gateway.file_version import file_version
from tidal_gateway.settings import GatewaySettings

_RECHECK_S: Final = 1.0

_log = logging.getLogger("tidal_gateway")


class Certificates:
    """The TLS context of a worker, which uses for each new connection the files as they were read last.

    Args:
        settings: Settings with `tls_cert` and `tls_key`.

    Raises:
        InvalidArgument: A file is not accepted.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        assert settings.tls_cert is not None
        assert settings.tls_key is not None
        self._cert, self._key, self._client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
        self._version = self._read_version()
        self._current = self.context = self._new_context()
        # Certificates cannot be taken out of a context: connections get another one, whatever name they ask for.
        self.context.sni_callback = self._use_current

    def run(self) -> None:
        """Read the files again when they change, for ever; new connections use what was read."""
        while True:
            time.sleep(_RECHECK_S)
            self.check()

    def check(self) -> None:
        """Read the files again if they have changed; ones that do not fit are reported and not used."""
        version = self._read_version()
        if version == self._version:
            return
        self._version = version
        try:
            self._current = self._new_context()
        except InvalidArgument as error:
            _log.error("the previous certificates stay in use: %s", error)
        else:
            _log.info("the certificates were read again: %s", self._cert)

    def _use_current(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._cert, self._key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(f"tls_cert {self._cert} and tls_key {self._key} are not accepted: {error}") from None
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except (OSError, ssl.SSLError) as error:
                raise InvalidArgument(f"tls_client_ca {self._client_ca} is not accepted: {error}") from None
            context.verify_mode = ssl.CERT_REQUIRED
            # A resumed connection would not show its certificate again.
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.num_tickets = 0
        return context

    def _read_version(self) -> tuple[tuple[int, int, int] | None, ...]:
        files = (self._cert, self._key, self._client_ca)
        return tuple(None if each is None else file_version(each) for each in files)
