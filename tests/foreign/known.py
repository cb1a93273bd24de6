"""Why tests of others fail at a server of a group, where it does not refuse what they do.

Each reason is one that members/postgresql/README.md states. A failure that is not here is a defect.
"""

KNOWN: dict[str, dict[str, str]] = {}
"""By program: what is found in `TEST: what was said`, and the reason."""
