"""The what-if tool: schedules a stream of transactions under every scheme on a virtual clock."""
