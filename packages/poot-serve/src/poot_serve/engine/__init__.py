"""The engine: a process that has the device and runs all requests in one loop, and the client that speaks to it."""
