"""The spill: what was accepted and made durable on local disk while the backend could not take it."""
