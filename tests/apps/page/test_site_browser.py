"""A site of files in a browser, on a host that has nothing but files."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlencode

import pytest
from tests.apps.page import test_browser
from tests.apps.page.states import start
from tests.apps.page.test_browser import SHOWN, opened, same_as_its_commands, settled

from shardwise.apps.page.grid import grid_state, site_grid
from shardwise.apps.page.site import write_site
from shardwise.apps.page.views import VIEWS

pytestmark = pytest.mark.browser
browser, address = test_browser.browser, test_browser.address
STORED = {
    "hbm": {"chunks": "16"},
    "models": {"model": "llama-3-8b"},
    "training": {**start("training"), "tokens": "1T"},
}
REFUSED = {"on": "v5e", "chips": "300"}


class Quiet(SimpleHTTPRequestHandler):
    """`python -m http.server`, without its log."""

    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site with a state of a few views, on a static host."""
    folder = tmp_path_factory.mktemp("site")
    asked = [*STORED.items(), ("training", REFUSED)]
    states = [grid_state(VIEWS[name], words) for name, words in asked]
    write_site(folder, site_grid(views=list(STORED)), states, None)
    host = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    with host:
        threading.Thread(target=host.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{host.server_address[1]}/"
        host.shutdown()


@pytest.mark.parametrize("name", STORED)
def test_a_link_to_a_state_of_a_site_opens(browser, address, site, name):
    words = urlencode(STORED[name])
    served, _ = opened(browser, address, f"{name}?{words}", 1280, "light")
    stored, wrong = opened(browser, site, f"{name}?{words}", 1280, "light")
    assert stored.locator("nav a").count() == len(STORED)
    assert stored.evaluate(SHOWN) == served.evaluate(SHOWN)
    assert wrong == []
    same_as_its_commands(stored, name)
    served.close()
    stored.close()


def test_a_state_that_a_site_lacks_has_its_command(browser, site):
    tab, wrong = opened(browser, site, "hbm?chunks=16", 1280, "light")
    tab.get_by_label("Bytes read, typed").fill("7e6")
    tab.get_by_label("Bytes read, typed").press("Enter")
    settled(tab)
    assert "none for these controls" in tab.locator("[role=alert]").inner_text()
    assert tab.locator(".stale").count() == 1
    line = tab.locator("pre[aria-label=Command]").first.inner_text()
    assert line == "shardwise ui --open --at 'hbm?read=7e6&chunks=16'"
    tab.get_by_label("Bytes read, typed").fill("24M")
    tab.get_by_label("Bytes read, typed").press("Enter")
    settled(tab)
    assert tab.locator("[role=alert]").count() == 0, "24M is the position 24000000"
    assert wrong == []
    tab.close()


def test_a_state_that_was_refused_has_its_command(browser, site):
    tab, wrong = opened(browser, site, f"training?{urlencode(REFUSED)}", 1280, "light")
    assert "v5e has no slice of so many" in tab.locator("[role=alert]").inner_text()
    line = tab.locator("pre[aria-label=Command]").inner_text()
    assert line == "shardwise ui --open --at 'training?on=v5e&chips=300'"
    assert tab.locator("a.trace, .sheets").count() == 0, "what needs the server"
    assert wrong == []
    tab.close()
