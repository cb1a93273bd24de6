"""A heap in two arrays: keys, and a value with each.

`heapq` needs lists, and compiled code that has none need not count references: that is most of its
time, as each call passes all arrays of a run.
"""

from collections.abc import MutableSequence

Column = MutableSequence[int]


def push(keys: Column, values: Column, count: int, key: int, value: int) -> int:
    """Adds a pair to a heap of `count` pairs, and returns how many there are.

    >>> keys, values = [5, 0], [1, 0]
    >>> push(keys, values, 1, 3, 2), keys, values
    (2, [3, 5], [2, 1])
    """
    place = count
    while place > 0:
        parent = (place - 1) // 2
        if keys[parent] <= key:
            break
        keys[place] = keys[parent]
        values[place] = values[parent]
        place = parent
    keys[place] = key
    values[place] = value
    return count + 1


def pop(keys: Column, values: Column, count: int) -> int:
    """Removes the pair with the smallest key, and returns how many are left.

    >>> keys, values = [3, 5], [2, 1]
    >>> pop(keys, values, 2), keys[0], values[0]
    (1, 5, 1)
    """
    count -= 1
    key, value = keys[count], values[count]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        if child + 1 < count and keys[child + 1] < keys[child]:
            child += 1
        if key <= keys[child]:
            break
        keys[place] = keys[child]
        values[place] = values[child]
        place = child
    keys[place] = key
    values[place] = value
    return count
