"""Opens a store and writes to it when it is told to; for the tests that stop and kill it."""

from __future__ import annotations

import os
import sys

from basecagg.errors import StorageError
from basecagg.protocol.effects import Persist
from basecagg.storage.lease import Lease
from basecagg.storage.server_store import ServerStore


def main(url: str) -> None:
    if os.environ.get("LEASE_UNCHECKED"):
        Lease.check = lambda self, execute: None
    store = ServerStore(url)
    print("opened", flush=True)
    for _ in sys.stdin:
        try:
            store.commit([Persist("k", "others", b"2")])
        except StorageError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        else:
            print("written", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
