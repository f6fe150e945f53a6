"""The words of the system: ids, messages, topics, errors and limits. Imports nothing of ours."""
