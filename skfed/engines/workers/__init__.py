"""Works on clients: cut among threads, processes of this machine, or the workers of a cluster."""
