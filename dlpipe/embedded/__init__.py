"""The one-machine stack: a private Redis and the processes around it, all of which die with their owner."""
