"""What the nodes say of themselves: latencies, diagnostics."""
