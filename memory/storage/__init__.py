"""The database under a bank: tables, transactions, rows, vectors, and what is one engine's own."""
