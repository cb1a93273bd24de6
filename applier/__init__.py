"""The way of a transaction after its certification: queued durably, scheduled, executed by
workers in parallel, committed in the total order.
"""
