"""A server with the mock engine, and its clients, for the tests of a file."""

import time

import httpx
import openai
import pytest
from tests.apps.server.made import folder_of, nothing_is_held, replica_of

from shardwise.apps.server.run import running


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = folder_of(tmp_path_factory.mktemp("checkpoint"))
    replica = replica_of(folder, wait=lambda _: time.sleep(0.0005))
    with running(replica) as found:
        yield found
        time.sleep(0.1)
        nothing_is_held(found[0])


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server[1], timeout=30) as made:
        yield made


@pytest.fixture
def sdk(server):
    with openai.OpenAI(base_url=f"{server[1]}/v1", api_key="none", max_retries=0) as made:
        yield made
