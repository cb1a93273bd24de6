"""Tests of applier/mysql_logs."""
