"""What the kernel and ``/proc`` say of a running system, from outside. Each reader returns its figures, or says that it can't read,
why, and what to do about it. All take the roots of their trees as parameters."""
