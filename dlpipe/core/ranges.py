"""What the head of a GET answer lets us do with its body. Pure; HTTP.md is its table (STREAM-1)."""
