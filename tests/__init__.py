"""The tests of groupcert, by package."""
