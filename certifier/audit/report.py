"""The page about an audit: one HTML file for people.

It contains the summary as JSON and draws from that alone; nothing is loaded from anywhere. Texts
from a log, such as keys, reach the document only as text, never as HTML.
"""

import json
from importlib.resources import files

from groupcert.certifier.audit.answers.result import JsonObject

_TEMPLATE = files("groupcert.certifier.audit").joinpath("report.html")
_PLACE = "SUMMARY_AS_JSON"


def page(summary: JsonObject) -> str:
    """Returns the page of a summary."""
    text = json.dumps(summary, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return _TEMPLATE.read_text(encoding="utf-8").replace(_PLACE, text)
