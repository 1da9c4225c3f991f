"""`poot bench serve`: how fast any server with OpenAI's interface answers many clients."""
