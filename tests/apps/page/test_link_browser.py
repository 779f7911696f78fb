"""Links that say what the page does not know, in a browser."""

import pytest
from tests.apps.page import test_browser
from tests.apps.page.test_browser import AXE, BOTH, OVERLAPS, SHOWN, opened, settled

pytestmark = pytest.mark.browser
browser, address = test_browser.browser, test_browser.address
NOTICE = ".unknown"


@pytest.mark.parametrize(("width", "theme"), BOTH)
def test_a_control_that_is_not_known_is_said_until_it_is_dismissed(browser, address, width, theme):
    tab, wrong = opened(browser, address, "roofline?m=300&colour=red&frame=2", width, theme)
    said = tab.locator(NOTICE).inner_text()
    assert "Roofline has no control 'colour'." in said
    assert "'frame'" not in said
    assert tab.evaluate(OVERLAPS) == []
    tab.evaluate(AXE.read_text())
    found = tab.evaluate("() => axe.run()")["violations"]
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
    before = tab.evaluate(SHOWN)
    tab.get_by_role("button", name="Dismiss").click()
    settled(tab)
    assert tab.locator(NOTICE).count() == 0
    assert tab.url.endswith("#roofline?m=300&frame=2")
    assert tab.evaluate(SHOWN) == before, "what is known of the link is shown"
    assert wrong == []
    tab.close()


def test_a_view_that_is_not_known_is_said_with_what_is_shown(browser, address):
    tab, wrong = opened(browser, address, "rooflin?m=300", 1280, "light")
    said = tab.locator(NOTICE).inner_text()
    assert "no view 'rooflin'" in said
    assert f"shows {tab.locator('h1').inner_text()} instead" in said
    tab.get_by_role("link", name="Roofline", exact=True).click()
    settled(tab)
    assert tab.locator(NOTICE).count() == 0
    assert wrong == []
    tab.close()


def test_a_link_that_is_known_has_no_notice(browser, address):
    tab, _ = opened(browser, address, "roofline?m=300", 1280, "light")
    assert tab.locator(NOTICE).count() == 0
    tab.close()
