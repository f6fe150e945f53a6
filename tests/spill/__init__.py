"""The spill: what is kept while the store is away, with real files and real databases."""
