"""Video4Linux cameras."""
