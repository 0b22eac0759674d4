"""Who can agree on what, before the first frame: constraints in, one buffer setting out."""
