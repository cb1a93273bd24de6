"""The addresses of members, `host:port`: the same shape in files, on command lines and in the log.

Pure.
"""

import re

ADDRESS = r"^(\[[0-9A-Fa-f:.]+\]|[^\s:/]+):\d{1,5}$"
ADDRESS_SHAPE = "host:port, such as 127.0.0.1:7101 or [::1]:7101"
ADDRESS_CHARACTERS_MAX = 300
PORT_MAX = 65_535


def is_address(text: str) -> bool:
    """Returns whether `text` is `host:port`.

    >>> is_address("[::1]:7101"), is_address("m1"), is_address("m1:0")
    (True, False, False)
    """
    if len(text) > ADDRESS_CHARACTERS_MAX or not re.fullmatch(ADDRESS, text):
        return False
    return 1 <= int(text.rpartition(":")[2]) <= PORT_MAX
