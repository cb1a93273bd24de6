"""The answers of an audit: findings, results, errors."""
