"""Isolation: the anomalies that snapshot isolation and serializability rule out."""
