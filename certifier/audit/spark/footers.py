"""How many rows a log has, read from the ends of its files before Java starts."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyarrow import ArrowException, parquet

FEW_ROWS = 500_000
"""Up to so many rows a plan costs more to compile than to interpret."""
FILES_MAX = 1_000
"""Files that are asked; a log of more has many rows."""


def has_few_rows(paths: Sequence[str]) -> bool:
    """Returns whether the logs below paths have `FEW_ROWS` rows at most, as far as that can be told
    quickly: not of files on other machines, nor of those that cannot be read.
    """
    rows = count = 0
    try:
        for file in local_files(paths):
            count += 1
            rows += parquet.read_metadata(file).num_rows
            if rows > FEW_ROWS or count > FILES_MAX:
                return False
    except (OSError, ArrowException, ValueError):
        return False
    return count > 0


def local_files(paths: Iterable[str]) -> Iterator[Path]:
    """Yields the files below paths; raises ValueError for one on another machine."""
    for path in map(local_path, paths):
        yield from [path] if path.is_file() else path.rglob("*.parquet")


def local_path(path: str) -> Path:
    """Returns a path that Spark takes as one of this machine; raises ValueError if it is not."""
    parts = urlsplit(path)
    if parts.scheme not in ("", "file") or parts.netloc:
        raise ValueError(path)
    return Path(unquote(parts.path) if parts.scheme else path)
