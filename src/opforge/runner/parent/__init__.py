"""The parent's end: hosts, servers, workers and the watch over them."""
