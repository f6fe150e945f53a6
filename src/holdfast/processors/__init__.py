"""The processing stage: worker processes between a topic's log and its subscribers."""
