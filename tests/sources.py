"""The text files of the tree, as the tests read them that look for what a reviewer would."""

import ast
import subprocess
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Source(NamedTuple):
    """One text file of the tree; `path` is relative to its root, with forward slashes."""

    path: str
    text: str

    def problem(self, line: int, message: str) -> str:
        """Returns one line of a check's answer."""
        return f"{self.path}:{line}: {message}"

    def nodes(self) -> Iterator[ast.AST]:
        """Yields every node of a Python source."""
        return iter(nodes_of(self.text))

    def is_below(self, *prefixes: str) -> bool:
        """Tells whether the file is one of the named files, or in one of the directories."""
        return any(
            self.path == prefix or (prefix.endswith("/") and self.path.startswith(prefix))
            for prefix in prefixes
        )


Check = Callable[[Source], list[str]]


@lru_cache(maxsize=1)
def parse(text: str) -> ast.Module:
    """Returns the syntax tree; every check of one source asks for it. All of them are too much."""
    return ast.parse(text)


@lru_cache(maxsize=1)
def nodes_of(text: str) -> tuple[ast.AST, ...]:
    """Returns every node of a Python source."""
    return tuple(ast.walk(parse(text)))


@cache
def imported_names(source: Source) -> list[tuple[int, str]]:
    """Returns line and full dotted name of each thing that is imported, relative ones resolved."""
    names = []
    package = PurePosixPath(source.path).parent.parts
    if source.is_below("certifier/", "applier/", "members/"):
        package = ("groupcert", *package)
    for node in source.nodes():
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else [])))
            names += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return names


@cache
def tree() -> tuple[Source, ...]:
    """Returns the text files that git has or would add, in the order of their paths."""
    # In a container the tree may belong to another user, which git refuses without being told.
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    options = ["--cached", "--others", "--exclude-standard"]
    listed = subprocess.run([*command, *options], cwd=ROOT, check=True, capture_output=True)
    sources = []
    for path in sorted(set(listed.stdout.decode().split("\0"))):
        content = (ROOT / path).read_bytes() if (ROOT / path).is_file() else b"\0"
        if b"\0" not in content[:8192]:
            sources.append(Source(path, content.decode(errors="replace")))
    return tuple(sources)
