"""An OpenAI-compatible server: HTTP in one process, one scheduling loop over one device in another."""
