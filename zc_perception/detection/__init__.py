"""
From pixels to boxes.

No accelerator is needed here: what comes in are planes or raw tensors, what goes out are boxes.

In the order in which a frame passes: ``letterbox`` (geometry), ``tensor`` (planes to a network's
input), ``raw_tensor`` (what a device wrote), ``heads`` (raw tensors to boxes), ``nms`` (removes
duplicates), ``detections`` (what was found). Read ``heads/__init__`` first.
"""
