"""Who owns the bytes: descriptors, dma-bufs, heaps, fences, pools, and the ledger of copies. No ROS."""
