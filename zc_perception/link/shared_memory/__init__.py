"""Rung 2: frames for other processes of the host, by descriptor over a Unix socket. ``../WIRE.md`` is the protocol. No ROS in here."""
