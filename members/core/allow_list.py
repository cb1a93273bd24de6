"""Which names may be members of a group: the group's setting `members_allowed`."""

from collections.abc import Sequence

from ..errors.security import MemberNotAllowed


def refused_names(allowed: Sequence[str], proposed: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of `proposed` that are not in `allowed`, each once, in the order proposed;
    an empty list allows any name.

    >>> refused_names(["m1", "m2"], ["m2", "m9"]), refused_names([], ["m9"])
    (('m9',), ())
    """
    if not allowed:
        return ()
    return tuple(dict.fromkeys(name for name in proposed if name not in allowed))


def check_allowed(allowed: Sequence[str], proposed: Sequence[str]) -> None:
    """Raises MemberNotAllowed: a member proposes a view with a name that is not on the list."""
    if refused := refused_names(allowed, proposed):
        raise MemberNotAllowed(refused=", ".join(refused), allowed=", ".join(allowed))
