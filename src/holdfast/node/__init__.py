"""One running broker: its settings, and the only place where the parts are put together."""
