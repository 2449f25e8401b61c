"""The network: one place that makes clients, and everything that stands between a URL and a socket."""
