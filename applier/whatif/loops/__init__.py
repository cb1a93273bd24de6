"""Loops over arrays: the schedule of a whole history, without objects, to the microsecond.

The coordinator and the schemes cost some 15 µs a transaction and run, because they make objects
that a replica needs. A loop does the same arithmetic on numbers; numba compiles it where it is
installed, else Python runs the same functions. The loops are a second writing of the schemes'
rules, so they are never believed alone: `loops.windows` holds each run's loop to the
coordinator.
"""
