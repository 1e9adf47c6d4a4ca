"""The server's store on other databases, and what it says of its address."""

from __future__ import annotations

import pytest

from basecagg.errors import StorageError
from basecagg.storage.server import ServerStore


@pytest.mark.parametrize("url", ["", "store.db", "sqlite:/store.db"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(StorageError, match="write sqlite:///server"):
        ServerStore(url)


def test_other_databases_are_refused():
    with pytest.raises(StorageError, match="sqlite or postgresql, not on mysql") as caught:
        ServerStore("mysql://admin:password@host/db")
    assert "password" not in str(caught.value)
