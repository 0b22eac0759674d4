"""
What only a Jetson has: images of ``libnvbufsurface``, and the VIC that converts them.

No ROS.

Read ``nvbufsurface.py`` first: how an image is allocated, how one of a camera is read, and how a
descriptor becomes the library's object. ``vic.py`` converts from one image to another. ``abi.py``
has the structs of both libraries. Nothing of it has run on a Jetson yet: the tests use doubles of
the libraries in C.
"""
