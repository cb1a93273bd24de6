"""Spark for audits: the Java under it, a session, its progress, functions of Arrow arrays."""
