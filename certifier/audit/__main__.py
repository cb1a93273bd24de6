"""The audit for spark-submit, which chooses the cluster: `groupcert audit` without the command.

    spark-submit --master URL groupcert-audit.py PATH... --out DIR

`python -m groupcert.certifier.audit --archive groupcert-audit.py` makes that file, as
`groupcert audit --make-archive` does.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import GroupcertError
from .answers.errors import NoSuitableJava, SparkFailed
from .archive import submit_command, write_archive
from .audit_run import audit, has_findings, known_jobs
from .spark.audit_progress import ProgressLines
from .spark.spark_session import spark_session

FINDING, USAGE, UNAVAILABLE = 1, 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs an audit and returns the exit code."""
    parser = argparse.ArgumentParser(prog="groupcert-audit")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="any path that Spark reads")
    parser.add_argument("--out", metavar="DIR", help="where the answers go")
    parser.add_argument("--job", action="append", choices=known_jobs(), help="only this one")
    parser.add_argument("--since", metavar="DIR", help="an audit before: reads only new files")
    parser.add_argument("--json", action="store_true", help="print the summary")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="write that file, and end")
    options = parser.parse_args(arguments)
    if options.archive:
        write_archive(options.archive)
        sys.stdout.write(f"{submit_command(options.archive)}\n")
        return 0
    if not (options.paths and options.out):
        parser.error("PATH and --out are needed")
    try:
        with spark_session() as spark:
            summary = audit(
                spark,
                options.paths,
                options.out,
                jobs=options.job,
                since=options.since,
                on_progress=ProgressLines(),
            )
    except GroupcertError as error:
        sys.stderr.write(f"groupcert-audit: {' '.join(str(error).split())}\n")
        return UNAVAILABLE if isinstance(error, NoSuitableJava | SparkFailed) else USAGE
    if options.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    return FINDING if has_findings(summary) else 0


if __name__ == "__main__":
    raise SystemExit(main())
