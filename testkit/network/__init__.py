"""Networks of our own: namespaces with cuts, slow and lossy links between them, and a cable that can be cut."""
