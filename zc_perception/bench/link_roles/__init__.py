"""What the processes of the link benchmark do."""
