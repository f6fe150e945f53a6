"""One cluster that lives through many troubles for a long time: `python -m chaos --minutes 30`.

`script` draws episodes from a seed; `troubles`, `troubles_network` and `troubles_disk` are what happens in them, on a
`stage` that knows who is hurt; `loads` keep the cluster busy and write down in a `ledger` what they were told; `watch`
looks at who leads. In the end `judge` holds the ledger against what the nodes serve, and `picture` draws it all.
"""
