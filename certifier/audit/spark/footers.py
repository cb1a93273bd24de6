"""How much a log has, read from the ends of its files before Java starts."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pyarrow import ArrowException, parquet

from ..answers.errors import NO_LOG_ADVICE, UnreadableLog

FEW_ROWS = 500_000
"""Up to so many rows a plan costs more to compile than to interpret."""
FEW_ITEMS = 3_000_000
"""And up to so many items that their transactions wrote and read: each is a row of its own in half
of the plans. A set without items counts as one.
"""
FEW_BYTES = 256 << 20
"""And up to so many bytes before they were compressed: keys in words are longer than all else."""
FILES_MAX = 1_000
"""Files that are asked; a log of more has many rows."""
_ITEMS = ("write_set.", "read_set.")
_PATTERN = frozenset("*?[{")
"""What makes a path of Spark a pattern."""


def check_paths(paths: Iterable[str]) -> None:
    """Raises UnreadableLog if a path of this machine has no Parquet file; one with a pattern is
    left to Spark, and so is one of another machine.
    """
    for path in paths:
        try:
            local = local_path(path)
        except ValueError:
            continue
        if _PATTERN.isdisjoint(path) and not (local.is_file() or any(local_files([path]))):
            problem = "has no Parquet file" if local.is_dir() else "is not there"
            raise UnreadableLog(problem=f"{path} {problem}", advice=NO_LOG_ADVICE)


class _Size(NamedTuple):
    """The size of a part of a log."""

    rows: int
    items: int
    bytes: int


def has_few_rows(paths: Sequence[str]) -> bool:
    """Returns whether the logs below paths have `FEW_ROWS` rows, `FEW_ITEMS` items and `FEW_BYTES`
    bytes at most, as far as that can be told quickly: not of files on other machines, nor of those
    that cannot be read.
    """
    rows = items = size = count = 0
    try:
        for count, file in enumerate(local_files(paths), 1):
            for part in _sizes(file):
                rows, items, size = rows + part.rows, items + part.items, size + part.bytes
                if rows > FEW_ROWS or items > FEW_ITEMS or size > FEW_BYTES:
                    return False
            if count > FILES_MAX:
                return False
    except (OSError, ArrowException, ValueError):
        return False
    return count > 0


def _sizes(file: Path) -> Iterator[_Size]:
    """Yields the size of each row group of a file."""
    told = parquet.read_metadata(file)
    paths = [told.schema.column(number).path for number in range(told.num_columns)]
    lists = [number for number, path in enumerate(paths) if path.startswith(_ITEMS)]
    for group in map(told.row_group, range(told.num_row_groups)):
        items = sum(group.column(number).num_values for number in lists)
        yield _Size(group.num_rows, items, group.total_byte_size)


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
