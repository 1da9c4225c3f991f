"""Answers: from a request that was checked to what is sent, whole or as a stream."""
