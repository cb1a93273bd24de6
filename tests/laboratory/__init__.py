"""The laboratory: operations, histories, clients, checkers and what is broken on purpose."""
