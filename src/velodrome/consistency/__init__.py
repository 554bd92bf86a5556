"""Consistency models as pure code: who may begin a step, given how far every worker is."""
