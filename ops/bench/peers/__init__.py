"""What we are compared with. What runs in the peers' own environment imports nothing of ours."""
