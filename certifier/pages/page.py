"""A self-contained page: one HTML file with its data, its style and its script.

It loads nothing. Its security policy lets the browser run the one script and the one style that it
was made with, by their digests, so that a text from a log that got into the document as HTML would
still do nothing.
"""

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files

_PARTS = files("groupcert.certifier.pages")
_SCRIPTS = ("elements.js", "numbers.js", "charts.js")
_STYLE = "page.css"


def page(title: str, script: str, data: Mapping[str, object], *, style: str = "") -> str:
    """Returns a page whose script finds `data` in the constant of that name, and `main` empty."""
    shared = (_PARTS.joinpath(name).read_text("utf-8") for name in _SCRIPTS)
    script = "\n".join([*shared, f"{{\n{script}}}"])  # In a block: its names are its own.
    style = _PARTS.joinpath(_STYLE).read_text("utf-8") + style
    sources = {"script-src": _digest(script), "style-src": _digest(style), "img-src": "data:"}
    policy = "; ".join(["default-src 'none'", *(f"{kind} {of}" for kind, of in sources.items())])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<main><noscript>This page draws itself, which needs JavaScript.</noscript></main>
<script id="data" type="application/json">{_json(data)}</script>
<script>{script}</script>
</body>
</html>
"""


def _digest(text: str) -> str:
    """Returns the source of a policy that this inline text alone is."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _json(data: Mapping[str, object]) -> str:
    """Returns JSON that cannot end the element that it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
