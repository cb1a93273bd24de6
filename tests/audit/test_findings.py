"""Each code of a finding is what some history of tests/audit is expected to have found in it."""

import ast
from collections.abc import Iterable
from pathlib import Path

from groupcert.certifier.audit.answers.findings import Code


def is_expectation(node: ast.AST) -> bool:
    """Whether a fault, a tampering, a change or an assertion says what has to be found."""
    match node:
        case ast.Call(func=ast.Attribute(attr="expect") | ast.Name(id="Tampering")) | ast.Assert():
            return True
        case ast.AnnAssign(target=ast.Name(id="CHANGES" | "FAULTS")):
            return True
    return False


def expected_in(sources: Iterable[str]) -> set[str]:
    """The names of the codes that are expected somewhere in these modules."""
    expectations = [
        node for each in sources for node in ast.walk(ast.parse(each)) if is_expectation(node)
    ]
    return {
        node.attr
        for each in expectations
        for node in ast.walk(each)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Code"
    }


def test_each_code_is_expected_of_some_history() -> None:
    sources = [path.read_text() for path in Path(__file__).parent.glob("*.py")]
    assert set(Code) - expected_in(sources) == set()


def test_a_code_that_is_only_named_is_not_expected() -> None:
    assert expected_in(["FOLLOWING = {Code.HISTORY_CUT}"]) == set()
    assert expected_in(["scene.expect(Code.HISTORY_CUT, row)"]) == {"HISTORY_CUT"}
