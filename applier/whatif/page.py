"""The page: the report as one HTML file for people.

It contains the report as JSON and draws from that alone; nothing is loaded from anywhere. Texts of
the stream reach the document only as text, never as HTML.
"""

import json
from pathlib import Path

JsonObject = dict[str, object]

_TEMPLATE = Path(__file__).with_name("page.html")
_PLACE = "REPORT_AS_JSON"


def page(report: JsonObject) -> str:
    """Returns the page of a report."""
    text = json.dumps(report, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return _TEMPLATE.read_text(encoding="utf-8").replace(_PLACE, text)
