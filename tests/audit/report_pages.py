"""Pages of summaries in a browser, as the tests of the report look at them."""

from collections.abc import Callable

from selenium.webdriver import Chrome

from groupcert.certifier.audit.answers.result import JsonObject

WIDTHS = (390, 420, 800, 1400)
Look = Callable[[JsonObject], Chrome]
