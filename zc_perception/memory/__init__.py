"""Who owns the bytes: descriptors, dma-bufs, heaps, fences, pools, and the ledger of copies. No ROS.

Read ``pool.py`` first: the comment of ``BufferPool`` tells how a buffer goes from the producer to
its consumers and back, and who may hold how many. Beside it lies ``foreign_pool.py`` (a pool over
buffers that somebody else allocates).

Below the pool: ``heaps.py`` allocates buffers, ``dmabuf.py`` is one buffer, ``fence.py`` says when
a device is done with it, and ``owned_fd.py`` owns one descriptor. ``kernel_abi.py`` has the
kernel's numbers. ``ledger.py`` counts each pass of the CPU over pixels.
"""
