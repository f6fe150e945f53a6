"""What Raft promises, scenario by scenario and rule by rule, with neither clock nor network nor disk."""
