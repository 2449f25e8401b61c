"""Where what is told of the work goes: numbers that all processes of a worker share, their page, and log lines."""
