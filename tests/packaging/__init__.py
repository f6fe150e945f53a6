"""What a user builds and installs Holdfast from."""
