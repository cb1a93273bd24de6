"""The page about an audit: one HTML file for people."""

from importlib.resources import files

from ..pages import page as pages
from .answers.result import JsonObject

_ROOM = files("groupcert.certifier.audit")


def page(summary: JsonObject) -> str:
    """Returns the page of a summary."""
    names = ("cycle.js", "report.js", "report.css")
    *scripts, style = (_ROOM.joinpath(name).read_text("utf-8") for name in names)
    return pages.page("Audit of certification logs", "\n".join(scripts), summary, style=style)
