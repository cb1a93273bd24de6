"""The source's properties of a transaction, for those who execute it elsewhere."""
