"""Which draft length pays on this machine: passes and acceptance as measured, their sum, and where it is kept."""
