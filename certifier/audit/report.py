"""The page about an audit: one HTML file, for people to look at first.

The rule it keeps: it holds the summary itself, as JSON, and draws from that alone; nothing is
loaded from anywhere. What comes from a log, such as keys, reaches the document only as text.
"""

import json
from importlib.resources import files

from certifier.audit.result import JsonObject

_TEMPLATE = files("certifier.audit").joinpath("report.html")
_PLACE = "SUMMARY_AS_JSON"


def page(summary: JsonObject) -> str:
    """The page of a summary."""
    text = json.dumps(summary, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return _TEMPLATE.read_text(encoding="utf-8").replace(_PLACE, text)
