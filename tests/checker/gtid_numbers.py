"""The model's GTIDs: each member takes numbers from a block of its own.

A block is the first numbers that are neither used nor in another block, as many as the group's
setting says or up to the next used one. Each view change frees what is left of all blocks.
"""


class GtidNumbers:
    """The numbers of the group's source; no transaction brings its own."""

    def __init__(self) -> None:
        self._used: set[int] = set()
        self._blocks: dict[str, tuple[int, int]] = {}
        """What is left of each member's block: the next number, and the end."""
        self._reserved = 1

    def next_number(self, member: str, block_size: int) -> int:
        """Returns the next number of a member."""
        number, end = self._blocks.get(member, (0, 0))
        if number == end:
            number = self._reserved
            while number in self._used:
                number += 1
            end = number + block_size
            end = min([end, *(each for each in self._used if number < each < end)])
            self._reserved = end
        self._blocks[member] = number + 1, end
        self._used.add(number)
        return number

    def release(self) -> None:
        """Frees all blocks."""
        self._blocks, self._reserved = {}, 1
