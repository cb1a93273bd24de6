"""The second opinion: PySpark jobs that derive every decision of a certification log again."""
