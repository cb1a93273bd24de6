"""Options that several verbs of the command have."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Output = Annotated[Path | None, typer.Option(help="Also write the results to this file.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="How long the load runs.")]
