"""The Metis driver's import and submit ioctls: the card reads the camera's own buffer."""
