"""The routes, by what they answer."""
