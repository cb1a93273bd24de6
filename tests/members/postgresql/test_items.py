"""Which items unique indexes and foreign keys add to a write set."""

from groupcert.members.postgresql.items import key_items
from groupcert.members.postgresql.rows import NotedRow
from groupcert.members.postgresql.tables import Reference, UniqueKey
from tests.members.postgresql.tables import table

REFERENCE = Reference("public.parents", ("id",), ("parent",))
PARENTS = table(
    "parents",
    {"id": "integer", "email": "text"},
    ("id",),
    unique_keys=(UniqueKey("parents_email_key", ("email",), nulls_differ=True),),
    children=(REFERENCE,),
)
CHILDREN = table("children", {"id": "integer", "parent": "integer"}, ("id",), parents=(REFERENCE,))
TABLES = {each.full_name: each for each in (PARENTS, CHILDREN)}
REFERENCED = "public.parents/referenced (id)/'1'"


def items(*noted: NotedRow) -> list[str]:
    """The texts of the items."""
    return key_items(noted, TABLES)


def test_a_unique_value_that_is_taken_or_given_up_is_an_item() -> None:
    moved = NotedRow("public.parents", {"id": 1, "email": "a"}, {"id": 1, "email": "b'"})
    assert items(moved) == [
        "public.parents/parents_email_key/'a'",
        "public.parents/parents_email_key/'b'''",
    ]
    kept = NotedRow("public.parents", {"id": 1, "email": "a"}, {"id": 1, "email": "a"})
    assert items(kept) == []


def test_nulls_are_items_only_where_they_are_equal() -> None:
    row = NotedRow("public.parents", None, {"id": 1, "email": None})
    assert items(row) == []
    equal = UniqueKey("parents_email_key", ("email",), nulls_differ=False)
    strict = table("parents", {"id": "integer", "email": "text"}, ("id",), unique_keys=(equal,))
    found = key_items([row], {strict.full_name: strict})
    assert found == ["public.parents/parents_email_key/NULL"]


def test_a_new_child_and_its_parents_deletion_share_an_item() -> None:
    assert items(NotedRow("public.children", None, {"id": 5, "parent": 1})) == [REFERENCED]
    deleted = NotedRow("public.parents", {"id": 1, "email": None}, None)
    assert items(deleted) == [REFERENCED]


def test_a_child_that_keeps_its_parent_or_goes_adds_nothing() -> None:
    kept = NotedRow("public.children", {"id": 5, "parent": 1}, {"id": 5, "parent": 1})
    gone = NotedRow("public.children", {"id": 5, "parent": 1}, None)
    orphan = NotedRow("public.children", None, {"id": 5, "parent": None})
    assert items(kept, gone, orphan) == []
