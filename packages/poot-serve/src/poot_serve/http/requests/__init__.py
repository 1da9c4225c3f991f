"""What a body may hold, route by route, as pydantic models. A field that is not here is refused by its name."""
