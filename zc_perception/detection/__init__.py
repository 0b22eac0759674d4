"""From pixels to boxes: letterboxing, heads, non-maximum suppression and how well it works."""
