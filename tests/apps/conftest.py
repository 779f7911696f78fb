"""What commands print with --json in these tests is checked by its schema."""

import pytest
from tests.apps.documents import check_printed

from shardwise.apps.cli import output


@pytest.fixture(autouse=True)
def _documents_are_as_their_schemas_say(monkeypatch):
    printed = output.print_document

    def checked(doc):
        printed(doc)
        check_printed(doc)

    monkeypatch.setattr(output, "print_document", checked)
