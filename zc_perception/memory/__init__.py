"""
Owners of bytes: descriptors, dma-bufs, heaps, fences, pools, and the ledger of copies.

ROS isn't used here.

Read ``pool.py`` first: the comment of ``BufferPool`` tells how a buffer goes from the producer to
its consumers and back, and how many each of them may hold. Beside it lies ``foreign_pool.py`` (a
pool over buffers that something else allocates).

Below the pool: ``heaps.py`` allocates buffers, ``dmabuf.py`` is one buffer, ``fence.py`` says when
a device is done with it, and ``owned_fd.py`` owns one descriptor. ``kernel_abi.py`` has the
kernel's numbers. ``ledger.py`` counts each pass of the CPU over pixels.
"""
