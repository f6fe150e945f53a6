"""The same protocol with the broker in the test's own loop: quick to start, and its inner state can be looked at."""
