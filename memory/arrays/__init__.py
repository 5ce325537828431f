"""What a search reads: pictures of a namespace in memory, following the database."""
