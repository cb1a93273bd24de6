"""A new log from what members hold, where the group's log was lost or cut."""
