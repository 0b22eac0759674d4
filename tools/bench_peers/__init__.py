"""What one would use instead of the links, besides plain rclpy messages: zenoh, iceoryx2, Cyclone DDS.

``zc_bench`` itself has none of them. ``tools/bench_with_peers.py``, which ``make bench`` runs, adds them to ``zc_bench link``.

Read ``processes`` first: the list of the peers, their goals, and how their processes are run. ``worker`` is such a process. ``peer`` has
what the producers and consumers of all peers share. Each peer has one module with its name, and only that module imports it.
"""
