"""Tests of applier/mysql_servers."""
