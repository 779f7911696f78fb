"""The page's API, for the tests of this folder."""

import pytest
from starlette.testclient import TestClient

from shardwise.apps.page.app import page_app


@pytest.fixture(scope="module")
def page():
    with TestClient(page_app(), base_url="http://localhost") as client:
        yield client
