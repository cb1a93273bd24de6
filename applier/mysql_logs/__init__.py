"""Binary logs of MySQL and MariaDB: their files, read as transactions."""
