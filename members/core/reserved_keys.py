"""Which keys are reserved for members of PostgreSQL servers: the group's setting
`postgresql_tables`.

A member executes what stands under the keys of its tables, and ends where that is no row of
them: so could one client of the embedded store end all members. Pure.
"""

import fnmatch
import re
from collections.abc import Iterable
from functools import lru_cache

from ..errors.permissions import KeyReserved

OWN_TABLES = "groupcert.*"
"""Reserved with any others: what a schema change is written under is among them."""


def reserved_key(tables: tuple[str, ...], keys: Iterable[bytes]) -> bytes | None:
    """Returns the first of the keys that are reserved, where these patterns of tables are; None if
    no key is. A key's table is what stands before its first slash, as members read it.

    >>> reserved_key(("public.t*",), [b"public.u/1", b"public.t/1", b"public.t/2"])
    b'public.t/1'
    >>> reserved_key((), [b"groupcert.schema_changes/newest"])
    """
    if not tables:
        return None
    is_reserved = _expression(tables).match
    for key in keys:
        if is_reserved(key.partition(b"/")[0].decode(errors="replace")):
            return key
    return None


def check_reserved(tables: tuple[str, ...], keys: Iterable[bytes], caller: str) -> None:
    """Raises KeyReserved if a caller without the role writes a key that is reserved."""
    key = reserved_key(tables, keys)
    if key is not None:
        text = key.decode(errors="backslashreplace")
        raise KeyReserved(caller=caller, key=text, tables=", ".join(tables))


@lru_cache(maxsize=8)
def _expression(tables: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, (OWN_TABLES, *tables))))
