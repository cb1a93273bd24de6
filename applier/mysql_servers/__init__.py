"""Live servers of MySQL and MariaDB: connections, the stream of a log, snapshots of rows."""
