"""`python -m holdfast.cli`: the command line where its script is not on the path."""

from holdfast.cli import main

main()
