"""What the bytes mean: formats, modifiers, layouts, colorimetry. Pure values, no I/O."""
