"""A camera for the capture node that counts its frames. The package's metadata offers it as camera: counter."""

import numpy as np

from zc_perception.camera.camera import DrawnCamera

BITS = 16


class CounterCamera(DrawnCamera):  # reads width, height, framerate, frame_id and heap by itself
    """Shows the number of each frame as 16 upright bars: white is 1, black is 0, the highest bit is on the left."""

    SIZE, FRAMERATE = (640, 480), 30.0  # where the parameters are 0

    def render(self, sequence, luma, chroma):
        bits = np.array([sequence >> bit & 1 for bit in reversed(range(BITS))], np.uint8)
        columns = np.arange(luma.shape[1]) * BITS // luma.shape[1]
        luma[:] = 16 + 219 * bits[columns]  # NumPy arrays over the frame's own memory
        chroma[:] = 128
        return True  # False: this camera has no such frame
