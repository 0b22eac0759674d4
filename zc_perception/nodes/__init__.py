"""The ROS nodes, their parameters, and the programs that run them.

Read in this order:

1. :mod:`~zc_perception.nodes.perception_node`: what all nodes have in common, and the states that a node lives through.
2. :mod:`~zc_perception.nodes.capture` and :mod:`~zc_perception.nodes.inference`: a camera's node and an accelerator's. Each has its
   parameters at the top.
3. :mod:`~zc_perception.nodes.perception`: both with an overlay in one process, for one camera, several, or a pair.
4. :mod:`~zc_perception.nodes.main`: the console scripts. Their options are in :mod:`~zc_perception.nodes.command_lines`, what runs nodes
   is in :mod:`~zc_perception.nodes.process`.

Folders: ``params/`` has everything about parameters, ``container/`` the container for components, ``launching/`` what launch files share.
"""
