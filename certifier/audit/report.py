"""The page about an audit: one HTML file for people."""

from importlib.resources import files

from groupcert.certifier.audit.answers.result import JsonObject
from groupcert.certifier.pages import page as pages

_ROOM = files("groupcert.certifier.audit")


def page(summary: JsonObject) -> str:
    """Returns the page of a summary."""
    script, style = (_ROOM.joinpath(f"report.{kind}").read_text("utf-8") for kind in ("js", "css"))
    return pages.page("Audit of certification logs", script, summary, style=style)
