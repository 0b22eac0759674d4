"""``zc_bench``: figures that anyone can reproduce, with what they are compared to measured in the same run."""
