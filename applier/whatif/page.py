"""The page: the report as one HTML file for people."""

from importlib.resources import files

from ...certifier.pages import page as pages

JsonObject = dict[str, object]

_ROOM = files("groupcert.applier.whatif")


def page(report: JsonObject) -> str:
    """Returns the page of a report."""
    script, style = (_ROOM.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("js", "css"))
    return pages.page("What if: parallel schemes compared", script, report, style=style)
