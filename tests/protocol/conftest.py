"""Fixtures for the tests of the machines: a federation of seven in either mode."""

import pytest
from parties import make_federation


@pytest.fixture(params=["certified", "honest-server"])
def federation(request):
    """Seven users who all hold shares, K = 3, in either consistency mode."""
    return make_federation(consistency=request.param)


@pytest.fixture
def certified():
    """The same, against a cheating server."""
    return make_federation()
